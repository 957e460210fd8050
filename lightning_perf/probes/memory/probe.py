"""Measure memory during a run: by phase in sampled steps, by content, its growth, and when it runs out.

Nothing here synchronizes a device or resets a peak; a phase that did not raise the peak has no peak of its own.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from lightning_perf import seams
from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.model.saved_tensors import SavedTensors
from lightning_perf.probes.settings.compiler import is_any_compiled
from lightning_perf.records import Breakdown, DeviceMemory, Growth, HostMemory, Memory, OutOfMemory

from . import oom
from .allocation_history import MAX_ENTRIES, history_of, read_history, write_history
from .breakdown import ModelMemory, gradients_by_module, headroom_of, modules_held_by, with_gradients, with_peak
from .growth import HEAP, WORKERS, GrowthWatch
from .heap_diff import containers_of, roots_of
from .host_memory import ResidentMemory, WorkerMemory, c_heap, peak_rss_bytes, read_host_memory, with_highest
from .phase_memory import Allocator, PhaseReadings, allocator_of

FIRST_SAMPLED_STEPS = (1, 2)
"""The first step allocates what later ones reuse; the next ones show where the peak rises."""

MOST_WITHOUT_HEAP = 8
"""After so many readings of the host in a row for which the heap was too slow to read, it is no longer read."""

SAMPLE_EVERY = 50
_SAMPLES_BEFORE_RARER = 8  # after so many samples the distance between them doubles

_BREAKDOWN_ATTEMPTS = 3
_HOST_EVERY_NS = 30 * 10**9

PHASES_BY_PART = {"training_step": "forward", "zero_grad": "zero_grad", "backward": "backward"}
"""Without ``optimizer_step``, which ends with the step."""


class MemoryProbe(Probe):
    """Probe of memory during one run; stops at its first error. ``allocator`` replaces torch's in tests."""

    name = field = option = "memory"
    after = ("steps",)

    def __init__(self, run: RunContext, allocator: Allocator | None = None) -> None:
        self._excluded_ns = 0
        self._is_closed = False
        self.is_off = False
        self._trainer, self._module, self._loop, self._folder = run.trainer, run.pl_module, run.loop, run.folder
        # Part of the names of files: ranks and stages write to one folder.
        self._suffix = "" if run.loop.stage == "fit" else f"_{run.loop.stage}"
        self._suffix += f"_rank{run.trainer.global_rank}" if run.trainer.world_size > 1 else ""
        self._now_ns, self._on_fail = run.now_ns, partial(run.probes.switch_off, self.name)
        self._device = run.trainer.strategy.root_device
        self._allocator, reason = allocator_of(self._device) if allocator is None else (allocator, "")
        if self._allocator is None:
            self.missing["memory.devices"] = reason
        self._before = None if self._allocator is None else self._allocator.read()  # it counts since the process began
        self._history: Any = None  # `torch.cuda.memory`, until its recording is ended
        if run.options.memory_snapshot:
            self._history, reason = history_of(self._device)
            if self._history is None:
                self.missing["memory.oom.history"] = reason
        self._own = ResidentMemory(os.getpid())
        self._workers = WorkerMemory()
        readers: dict[str, Callable[[], int | None]] = {}
        self._n_without_heap = 0
        self._heap, reason = c_heap()
        if self._heap is None:
            self.missing["memory.growth.heap"] = reason
        else:
            readers[HEAP] = self._heap.read
        readers |= {"host": self._read_host, WORKERS: self._workers.read}  # the host's after the heap's
        if (device_allocator := self._allocator) is not None:
            readers[device_allocator.device] = lambda: device_allocator.read().allocated
        self._growth = GrowthWatch(readers, self._roots, self._now_ns, self._call_excluded)
        self._workers.on_change = self._growth.readings[WORKERS].clear
        self._phases = PhaseReadings(self._allocator, self._own)
        self._next_sample = FIRST_SAMPLED_STEPS[0]
        self._n_samples = 0
        self._sample_every = SAMPLE_EVERY
        self._is_sampling = False
        self._breakdown: Breakdown | None = None
        self._saved: SavedTensors | None = None
        self._model_memory: ModelMemory | None = None
        self._gradients: dict[str, int] = {}
        self._attempts = 0
        self._batch_size: int | None = None
        self._host: HostMemory | None = None
        self._next_host_ns = 0
        self._oom: OutOfMemory | None = None

    def start(self) -> None:
        if self._history is not None:
            self._history._record_memory_history(enabled="all", stacks="python", max_entries=MAX_ENTRIES)

    @property
    def next_step(self) -> int:
        return min(self._next_sample, self._growth.next_step)

    def step_begins(self, batch: Any) -> None:
        step = self._loop.main.n_steps
        if step >= self.next_step and not self.is_off:
            begin, excluded_ns = self._now_ns(), self._excluded_ns + self._growth.one_time_ns
            self._guarded(self._observe, step, batch)
            self.step_cost_ns += self._now_ns() - begin - (self._excluded_ns + self._growth.one_time_ns - excluded_ns)

    def step_ends(self) -> None:
        if self._is_sampling:
            begin = self._now_ns()
            self._guarded(self._sample_ends)
            self.step_cost_ns += self._now_ns() - begin

    def _read_host(self) -> int | None:
        """Return resident bytes without the heap's free blocks, whose size also varies with the timing of threads.

        Return None if the heap was not read at this step; all resident bytes once that has happened often in a row.
        """
        resident = self._own.read()
        if resident is None or self._heap is None:
            return resident
        free, self._heap.free_bytes = self._heap.free_bytes, None
        self._n_without_heap = 0 if free is not None else self._n_without_heap + 1
        if self._n_without_heap == MOST_WITHOUT_HEAP:
            self._heap = None
            self._growth.readings["host"].clear()
            return resident
        return None if free is None else resident - free

    def _observe(self, step: int, batch: Any) -> None:
        if step >= self._growth.next_step:
            self._growth.observe(step)
        now = self._now_ns()
        if now >= self._next_host_ns:
            self._next_host_ns = now + _HOST_EVERY_NS
            self._call_excluded(self.read_host)
        if step >= self._next_sample:
            self._sample_begins(step, batch)

    def _sample_begins(self, step: int, batch: Any) -> None:
        self._n_samples += 1
        if self._n_samples % _SAMPLES_BEFORE_RARER == 0:
            self._sample_every *= 2
        later = [s for s in FIRST_SAMPLED_STEPS if s > step]
        self._next_sample = later[0] if later else step + self._sample_every
        self._is_sampling = True
        self._batch_size = plain.batch_size(batch)
        self._phases.begin(self._batch_size)
        self._phases.read("transfer")
        is_wanted = self._breakdown is None or (self._breakdown.activations_bytes is None and self._saved is not None)
        if step > FIRST_SAMPLED_STEPS[0] and is_wanted and self._attempts < _BREAKDOWN_ATTEMPTS:
            self._attempts += 1
            self._call_excluded(self._begin_breakdown, batch)
        self._loop.listen(self)

    def _call_excluded(self, function: Callable[..., None], *args: Any) -> None:
        """Call a slow function, and exclude the current step from all statistics."""
        begin = self._now_ns()
        self._loop.main.leave_out()
        function(*args)
        self._excluded_ns += self._now_ns() - begin

    def _begin_breakdown(self, batch: Any) -> None:
        memory = self._count(batch)
        self._model_memory, self._gradients = memory, {}
        # With hooks on all modules, torch warns about compiled ones, and recompiles functions that call modules.
        if is_any_compiled(self._module):
            self.missing["memory.breakdown.activations"] = "tensors saved by compiled modules are not visible"
            return
        self._saved = SavedTensors(memory.count, memory.modules, self._now_ns)

    def enters(self, name: str) -> None:
        if name == "training_step" and self._saved is not None and self._model_memory is not None:
            self._saved.__enter__()

    def leaves(self, name: str) -> None:
        if name == "training_step" and self._saved is not None and self._model_memory is not None:
            self._saved.__exit__()
            if self.is_off:  # it failed meanwhile
                self._loop.listen(None)
        phase = PHASES_BY_PART.get(name)
        if phase is not None:
            begin = self._now_ns()
            self._guarded(self._part_ends, phase)
            self.step_cost_ns += self._now_ns() - begin

    def _part_ends(self, phase: str) -> None:
        self._phases.read(phase)
        if phase == "backward" and self._model_memory is not None:
            self._gradients = gradients_by_module(self._module, self._device)

    def _sample_ends(self) -> None:
        self._is_sampling = False
        self._loop.listen(None)
        self._phases.read("optimizer")
        memory, self._model_memory = self._model_memory, None
        if memory is None:
            return
        saved = self._saved
        if saved is not None:
            self.cost_ns += saved.cost_ns
            if saved.n_tensors == 0 and not saved.failure:
                saved.failure = "the sampled step ran no forward pass with gradients"
        record = with_gradients(memory.record(saved), self._gradients)
        self._breakdown = msgspec.structs.replace(record, n_samples=self._batch_size, step=self._loop.main.n_steps)

    def read_host(self) -> None:
        """Read the host's memory in full; too slow for every step."""
        self._workers.refresh()
        now = read_host_memory(self._workers.pids)
        self._host = now if self._host is None else with_highest(now, self._host)

    def run_ends(self, error: BaseException | None) -> None:
        """Record an out-of-memory error that ended the run, and write the history of allocations."""
        where = None if error is None else oom.memory_kind_of(error)
        if error is None or where is None:
            return
        folder = self._folder
        readings = self._growth.readings[self._main_place(where)]
        named = oom.names_in(self._module, self._trainer.optimizers)
        record = msgspec.structs.replace(
            oom.describe(error, where, self._loop.main.n_steps, named, self._device.type),
            timeline=tuple(zip(readings.steps, readings.values, strict=True)),
            post_mortem_file=None if folder is None else f"out_of_memory{self._suffix}.txt",
            checkpoint=seams.last_checkpoint(self._trainer) if self._loop.stage == "fit" else None,
        )
        self._oom = record
        if self._history is not None and folder is not None:
            snapshot = self._history._snapshot()
            history, sites = read_history(snapshot)
            self._oom = record = msgspec.structs.replace(record, history=history, history_sites=sites)
            name = f"memory_snapshot{self._suffix}.pickle"
            write_history(snapshot, folder / name)
            self._oom = msgspec.structs.replace(record, snapshot_file=name)

    def _main_place(self, where: str) -> str:
        if where == "device" and self._allocator is not None:
            return self._allocator.device
        return WORKERS if where == "worker" and self._growth.readings[WORKERS].steps else "host"

    def training_ends(self) -> None:
        """Take the last readings while workers and loaders may still exist; write the history."""
        self._guarded(self._growth.end, self._loop.main.n_steps)
        self._guarded(self.read_host)
        if self._history is not None and self._folder is not None:
            write_history(self._history._snapshot(), self._folder / f"memory_snapshot{self._suffix}.pickle")

    def abandon(self) -> None:
        self.is_off = True

    def close(self) -> None:
        self._is_closed = True
        self._loop.listen(None)
        if self._saved is not None:
            self._saved.__exit__()
        self._own.close()
        self._workers.close()
        if self._history is not None:
            self._history._record_memory_history(enabled=None)
            self._history = None

    def record(self) -> Memory:
        if not self._is_closed:
            self.read_host()
        host = msgspec.structs.replace(
            self._host or read_host_memory(),
            rss_bytes=self._own.read() or 0,
            peak_rss_bytes=peak_rss_bytes(),
            phases=self._phases.host_phases(),
        )
        device = self._device_memory()
        breakdown = self._finished_breakdown(device)
        return Memory(
            devices=() if device is None else (device,),
            host_rss_bytes=host.rss_bytes,
            host_peak_rss_bytes=host.peak_rss_bytes,
            host=host,
            breakdown=breakdown,
            growth=self._growth_records(),
            held_graphs=self._growth.held_graphs,
            headroom=headroom_of(breakdown, device, host, self._batch_size, self._phases.sizes),
            oom=self._oom,
        )

    def _device_memory(self) -> DeviceMemory | None:
        before = self._before
        if self._allocator is None or before is None:
            return None
        reading = self._allocator.read()
        n_retries = _count_since(before.n_retries, reading.n_retries)
        n_ooms = _count_since(before.n_ooms, reading.n_ooms)
        if reading.peak_allocated == before.peak_allocated > before.allocated and not (n_retries or n_ooms):
            self.missing["memory.devices"] = "more memory was allocated before this run, which hides its peak"
            return None
        self.missing.pop("memory.devices", None)
        return DeviceMemory(
            device=self._allocator.device,
            peak_allocated_bytes=reading.peak_allocated,
            peak_reserved_bytes=reading.peak_reserved,
            total_bytes=self._allocator.total_bytes,
            alloc_retries=n_retries,
            allocated_bytes=reading.allocated,
            reserved_bytes=reading.reserved,
            inactive_split_bytes=reading.peak_inactive_split,
            ooms=n_ooms,
            phases=self._phases.device_phases(),
            peak_phase=self._phases.peak_phase,
        )

    def _finished_breakdown(self, device: DeviceMemory | None) -> Breakdown | None:
        """Return the breakdown of the sampled step, completed by optimizer states and the peak since then."""
        if self._breakdown is None and not self._trainer.optimizers:
            return None
        now, replace = self._count(None), msgspec.structs.replace
        sampled = self._breakdown or with_gradients(now.record(), self._gradients)
        most = sampled.optimizer_bytes if sampled.optimizer_basis == "held" else 0  # replaces what was expected
        if self._breakdown is not None and now.optimizer_bytes > (most or 0):
            states = {m.name: m.optimizer_bytes for m in now.record().modules}
            modules = tuple(replace(m, optimizer_bytes=states.get(m.name, 0)) for m in sampled.modules)
            sampled = replace(sampled, optimizer_bytes=now.optimizer_bytes, optimizer_basis="held", modules=modules)
        if device is None or device.peak_allocated_bytes == 0:
            return sampled
        return with_peak(sampled, device.peak_allocated_bytes, device.peak_reserved_bytes)

    def _growth_records(self) -> tuple[Growth, ...]:
        """Return the trends; that of the workers with the containers of the dataset as suspects."""
        return tuple(
            msgspec.structs.replace(growth, suspects=containers_of(self._dataset()), census=_WORKERS_BASIS)
            if growth.where == WORKERS
            else growth
            for growth in self._growth.records()
        )

    def _dataset(self) -> Any:
        """Return the dataset of the training loader; None if it is unknown."""
        return plain.stored(getattr(self._trainer, "train_dataloader", None), "dataset")

    def _count(self, batch: Any) -> ModelMemory:
        copies = modules_held_by(self._trainer.callbacks, self._module)
        return ModelMemory(self._module, self._trainer.optimizers, self._device, copies, batch)

    def _roots(self) -> dict[str, Any]:
        trainer = self._trainer
        others = (trainer.datamodule, self._dataset(), *trainer.loggers)
        callbacks = [c for c in trainer.callbacks if c is not self._loop.owner]
        return roots_of(self._module, callbacks, others)

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        if self.is_off:
            return
        try:
            with plain.without_overrides():
                function(*args)
        except Exception as error:  # noqa: BLE001 - reported; nothing more is read, the training goes on
            self.is_off = True
            self._on_fail(error)
            if self._saved is None or not self._saved.is_in_place:  # otherwise ``leaves`` does, at the end of it
                self._loop.listen(None)


_WORKERS_BASIS = "containers of the dataset in this process; workers fill their own copies"


def _count_since(before: int | None, now: int | None) -> int | None:
    return None if now is None else now - (before or 0)
