"""Time the optimizer steps of a training in the user's process, and end it after enough of them."""

import contextlib
import math
import multiprocessing
import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import torch

from lightning_perf import seams
from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes.memory.host_memory import peak_rss_bytes
from lightning_perf.probes.model.ceilings import synchronize
from lightning_perf.probes.plain import size_reader
from lightning_perf.probes.settings.compiler import dynamo
from lightning_perf.stats.blocks import BLOCK_S, BLOCK_STEPS, steady_blocks
from lightning_perf.trials.job import Job, Result

MAX_LOSSES = 1000
_CHECK_EVERY_S = 1.0  # between two checks whether a run without a number of steps is long enough
_CHECK_EVERY_STEPS = 20  # the same with several ranks, which must check together
_READ_LOSSES_EVERY = 20  # batches
_MIN_EPOCHS = 3  # for figures of whole epochs


class MeterHooks:
    """Counts and times optimizer steps; ``finish`` is called on rank 0 with the result.

    The clock is read once per batch; a device is only synchronized at the end of a block, of ``block_steps`` or of
    ``BLOCK_S``. Unusual steps are left out: the first of an epoch, and those with a validation or a checkpoint. The
    wall time includes them.
    """

    measures_bare_loop = True

    def __init__(self, job: Job, finish: Callable[[Result], None]) -> None:
        super().__init__()
        self.job = job
        self.finish = finish
        self.outputs: Any = None
        self.is_done = False
        self._compiled_before_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self.n_steps = self.n_batches = self.n_epochs = 0
        self.step_ns = array("q")  # durations of usual steps
        self.step_at = array("q")  # their indices
        self._losses: list[float] = []
        self._loss_every = 1
        self._unread: list[Any] = []
        self._backward_losses: list[Any] = []
        self._bad_loss = ""
        self._epoch_edges: list[tuple[int, int]] = []
        self._started_ns = self._last_ns = self._checked_ns = self._ended_ns = 0
        self._is_unusual = True
        self._is_first_of_epoch = True
        self._known_steps = 0
        self._next_check = 1
        self._group_from = 0
        self._samples = 0
        self._size_of: Callable[[Any], int] | None = None
        self._batch_type: Any = None
        self._is_size_known = True

    @property
    def has_trained(self) -> bool:
        """Whether any batch was trained."""
        return self.n_batches > 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._compiled_before_s = _compile_s()
        if self.outputs is not None:
            self.outputs.redirect(trainer)
            self.outputs.guard_checkpoints(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._reset()
        self._device = trainer.strategy.root_device
        self._is_async = self._device.type not in ("cpu", "meta")
        self._known_steps = trainer.global_step
        # Without an optimizer Lightning counts no steps: each batch is one, as with manual optimization.
        self._is_automatic = bool(pl_module.automatic_optimization) and bool(trainer.optimizers)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._started_ns = self._last_ns = self._checked_ns = time.perf_counter_ns()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._is_unusual = self._is_first_of_epoch = True

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._is_unusual = True

    def leave_out_step(self) -> None:
        """Exclude the next step, which the Trainer makes in the arm ``bare-loop``."""
        self._is_unusual = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.n_epochs += 1

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if not self._is_automatic:  # with manual optimization, losses are only visible here
            self._backward_losses.append(loss.detach())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.n_batches += 1
        self._count_samples(batch)
        self._keep_loss(outputs)
        steps = trainer.global_step
        if self._is_automatic and steps == self._known_steps:
            return  # gradients are being accumulated
        self._known_steps = steps
        self.n_steps += 1
        self._time_step()
        if (self._bad_loss and trainer.world_size == 1) or self._is_enough(trainer):
            self._end(trainer)
            seams.stop_fit(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.has_trained:
            self._end(trainer, is_whole=True)

    def _count_samples(self, batch: Any) -> None:
        if not self._is_size_known:
            return
        try:
            if self._size_of is None or type(batch) is not self._batch_type:
                self._batch_type = type(batch)
                self._size_of = size_reader(batch)
            size = self._size_of(batch)
        except Exception as error:  # noqa: BLE001 - a batch without a size: samples per step stay None
            raise_if_from_signal(error)
            size = -1
        if size < 0:
            self._is_size_known = False
        self._samples += size

    def _keep_loss(self, outputs: Any) -> None:
        if (self.n_batches - 1) % self._loss_every == 0:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if not isinstance(loss, torch.Tensor) and self._backward_losses:
                loss = torch.stack([one.float().mean() for one in self._backward_losses]).sum()
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self._unread.append(loss.detach().reshape(()).float())
        self._backward_losses.clear()
        if len(self._unread) >= _READ_LOSSES_EVERY and not self._is_async:
            self._read_losses()

    def _read_losses(self) -> None:
        if not self._unread:
            return
        read = [float(value) for value in torch.stack(self._unread).tolist()]
        self._unread.clear()
        for value in read:
            if not math.isfinite(value) and not self._bad_loss:
                at = len(self._losses) * self._loss_every
                self._bad_loss = f"the loss became {'nan' if math.isnan(value) else 'inf'} at batch {at}"
            self._losses.append(value)
        if len(self._losses) >= 2 * MAX_LOSSES:
            self._losses = self._losses[::2]
            self._loss_every *= 2

    def _time_step(self) -> None:
        if self._is_async:
            self._time_group()
            return
        now = time.perf_counter_ns()
        self._record(now, 1)
        self._last_ns = now

    def _time_group(self) -> None:
        """Time several steps between two synchronizations of an asynchronous device."""
        block = self.job.block_steps or BLOCK_STEPS
        has_saved = self.outputs is not None and self.outputs.has_saved_checkpoint
        is_first = self._is_unusual or has_saved  # a group that has begun is dropped: it contains more than steps
        is_long = time.perf_counter_ns() - self._last_ns >= BLOCK_S * 1e9
        if not is_first and not is_long and self.n_steps - self._group_from < block:
            return
        synchronize(self._device)
        now = time.perf_counter_ns()
        self._record(now, 1 if is_first else self.n_steps - self._group_from)
        self._read_losses()
        self._group_from = self.n_steps
        self._last_ns = time.perf_counter_ns()

    def _record(self, now: int, n: int) -> None:
        """Record ``n`` steps that ended now, unless they are unusual."""
        if self.outputs is not None and self.outputs.has_saved_checkpoint:
            self.outputs.has_saved_checkpoint = False
            self._is_unusual = True
        if self._is_first_of_epoch:
            self._epoch_edges.append((now, self.n_steps))
            self._is_first_of_epoch = False
        if not self._is_unusual:
            mean = (now - self._last_ns) // n
            self.step_ns.extend([mean] * n)
            self.step_at.extend(range(self.n_steps - n, self.n_steps))
        self._is_unusual = False

    def _is_enough(self, trainer: Any) -> bool:
        if self.job.steps is not None:
            return self.n_steps >= self.job.steps
        now = time.perf_counter_ns()
        if trainer.world_size > 1:  # rank 0 decides for all, also when to check again, because clocks differ
            if self.n_steps < self._next_check:
                return False
            step_s = (now - self._started_ns) / 1e9 / self.n_steps
            later = self.n_steps + max(1, min(_CHECK_EVERY_STEPS, round(_CHECK_EVERY_S / max(step_s, 1e-9))))
            is_enough, self._next_check = trainer.strategy.broadcast((self._is_long_enough(now), later))
            return bool(is_enough)
        if now - self._checked_ns < _CHECK_EVERY_S * 1e9:
            return False
        self._checked_ns = now
        return self._is_long_enough(now)

    def _is_long_enough(self, now: int) -> bool:
        spent_s = (now - self._started_ns) / 1e9
        if spent_s >= self.job.max_s:
            return True
        blocks = steady_blocks([ns / 1e9 for ns in self.step_ns])
        if len(blocks.means_s) < self.job.min_blocks:
            return False
        return self.n_epochs >= _MIN_EPOCHS or spent_s >= self.job.max_s / 4

    def _end(self, trainer: Any, is_whole: bool = False) -> None:
        if self.is_done:
            return
        self.is_done = True
        self._ended_ns = time.perf_counter_ns()
        self._read_losses()
        if trainer.is_global_zero:
            self.finish(msgspec.structs.replace(self.result(trainer), is_whole=is_whole))

    def result(self, trainer: Any) -> Result:
        """Return the measurements so far."""
        blocks = steady_blocks([ns / 1e9 for ns in self.step_ns])
        steady_from = self.step_at[blocks.steady_from] if blocks.steady_from is not None else None
        world_size = int(trainer.world_size)
        per_step = per_s = None
        if self._is_size_known and self.n_steps:
            per_step = self._samples * world_size / self.n_steps
            if blocks.means_s:
                per_s = per_step / (sum(blocks.means_s) / len(blocks.means_s))
        is_cuda = self._device.type == "cuda"
        edges = [steps for _, steps in self._epoch_edges]
        return Result(
            status="failed" if self._bad_loss else "ok",
            reason=self._bad_loss,
            missing={} if blocks.means_s else {"block_means_s": blocks.reason},
            block_means_s=blocks.means_s,
            wall_block_means_s=self._wall_blocks(_epochs_between_validations(trainer)),
            block_steps=blocks.block_steps,
            n_steps=self.n_steps,
            n_batches=self.n_batches,
            steady_from=steady_from,
            samples_per_s=per_s,
            samples_per_step=per_step,
            batches_per_step=max(1, round(self.n_batches / max(1, self.n_steps))),
            peak_device_bytes=int(torch.cuda.max_memory_allocated(self._device)) if is_cuda else None,
            peak_host_bytes=_peak_host_bytes(),
            compile_s=max(0.0, _compile_s() - self._compiled_before_s),
            losses=tuple(value for value in self._losses if math.isfinite(value)),
            loss_every=self._loss_every,
            usual_step_s=statistics.median(self.step_ns[len(self.step_ns) // 2 :]) / 1e9 if self.step_ns else None,
            train_s=(self._ended_ns - self._started_ns) / 1e9,
            epochs=self.n_epochs,
            epoch_steps=(edges[-1] - edges[0]) / (len(edges) - 1) if len(edges) > 1 else None,
            world_size=world_size,
            planned_steps=_planned_steps(trainer),
        )

    def _wall_blocks(self, period: int) -> tuple[float, ...]:
        """Return the mean seconds per step of blocks of whole epochs, after the first epoch.

        ``period`` is the number of epochs between validations, so that all blocks have the same number of them.
        """
        edges = self._epoch_edges[1::period]
        if len(edges) < 2:
            return ()
        means: list[float] = []
        start_ns, start_steps = edges[0]
        for at_ns, steps in edges[1:]:
            seconds, n = (at_ns - start_ns) / 1e9, steps - start_steps
            if n >= BLOCK_STEPS or seconds >= BLOCK_S:
                means.append(seconds / n)
                start_ns, start_steps = at_ns, steps
        return tuple(means)


def _epochs_between_validations(trainer: Any) -> int:
    """Return the number of epochs after which the pattern of validations repeats."""
    if trainer.check_val_every_n_epoch is not None:
        return int(trainer.check_val_every_n_epoch)
    interval, n_batches = trainer.val_check_interval, trainer.num_training_batches
    if not isinstance(interval, int) or not isinstance(n_batches, int) or n_batches < 1:
        return 1
    return math.lcm(interval, n_batches) // n_batches


def _compile_s() -> float:
    """Return the seconds that torch.compile took so far in this process, forward and backward."""
    spent = getattr(dynamo("utils"), "calculate_time_spent", None)
    return float(spent().get("total_wall_time", 0.0)) if spent is not None else 0.0


def _planned_steps(trainer: Any) -> int | None:
    """Return the optimizer steps of the whole training; None if it has no limit, or Lightning cannot compute it."""
    try:
        n_steps = trainer.estimated_stepping_batches
    except Exception as error:  # noqa: BLE001 - accumulation that changes between epochs
        raise_if_from_signal(error)
        return None
    return int(n_steps) if 0 < n_steps < math.inf else None


def _peak_host_bytes() -> int:
    """Return the peak of this process plus the current unshared memory of its loader workers."""
    peak = peak_rss_bytes() or 0
    for worker in multiprocessing.active_children():
        with contextlib.suppress(psutil.Error):
            peak += int(psutil.Process(worker.pid).memory_full_info().uss)
    return peak
