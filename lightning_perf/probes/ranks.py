"""What each rank did itself and what it waited for the others, brought together on rank 0 without a collective.

Every rank puts a small summary into the key-value store that its process group was started with and goes on; rank 0
reads what is there, and waits for late ranks for a limited time only. So a rank that died, hangs or measures nothing
can neither hang a report nor be hung by one.
"""

from __future__ import annotations

import itertools
import math
import platform
import resource
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from lightning_perf import seams
from lightning_perf.records import Epoch, MissingRank, NamedTime, Ranks, RankSummary, StageTimes, together

from .clock import DeviceEvent
from .loop import BROADCASTING, REDUCING, LoopProbe
from .spans import PHASE_INDEX, Timeline

EPOCH_LIMIT_S = 2.0
"""How long rank 0 waits for late ranks at the end of an epoch: where batches are synchronised none is later than that
unless it is the one to report about."""

RUN_LIMIT_S = 10.0
"""The same at the end of the run."""

_POLL_S = 0.002

_FIRST_SAMPLED_STEP = 11
_FEW_STEPS = 7  # between the first samples; no usual number of accumulated batches divides it
_N_FIRST_SAMPLES = 16
_MANY_STEPS = 97
_SAMPLES_KEPT = 64

_HOST_KINDS = frozenset({"callback", "progress_bar", "checkpoint_callback", "module_hook", "logger"})

_runs = itertools.count()
"""Runs of this process. Every rank runs the same script, so the same run has the same number everywhere."""


# -- waiting for others inside backward -------------------------------------------------------------------------------


class BackwardWatch:
    """On a few steps: how long backward takes until this rank's own last gradient is there.

    DistributedDataParallel starts its collectives while gradients are computed and waits for them at the end of
    backward: what comes after the last gradient is waiting, for the network and for ranks that come later. A step may
    hold several backwards (manual optimization, closures of optimizers): they are added up. On a device that has run
    dry, what other callbacks do in ``on_after_backward`` before this one looks like waiting too.

    Args:
        parameters: All of the model's; which of them are trained may change, and is asked at each step looked at.
        timeline: Its ``backward`` phase is what is cut.
        make_event: Makes events of the device's clock; None where the host computes.
    """

    def __init__(
        self, parameters: Iterable[Any], timeline: Timeline, make_event: Callable[[], DeviceEvent] | None = None
    ) -> None:
        self.n = 0
        self.n_unused: int | None = None
        """The most parameters without a gradient in one backward; None before one was looked at."""
        self._own_ns: deque[int] = deque(maxlen=_SAMPLES_KEPT)
        self._waiting_ns: deque[int] = deque(maxlen=_SAMPLES_KEPT)
        self._parameters = tuple(parameters)
        self._timeline = timeline
        self._make_event = make_event
        self._marks: list[tuple[DeviceEvent, DeviceEvent, DeviceEvent]] = []
        """Of each backward of a step: its begin, the latest gradient, its end."""
        self._broadcast_marks = (make_event(), make_event()) if make_event is not None else None
        self._is_broadcast_marked = False
        self._is_unresolved = False
        self._step = 0
        self._next = _FIRST_SAMPLED_STEP
        self._handles: list[Any] = []
        self._error: Exception | None = None
        self._n_backwards = 0
        self._n_gradients = 0
        self._begin_ns = self._last_ns = self._step_ns = 0

    @property
    def is_on_device(self) -> bool:
        """Whether times are those of a device's clock."""
        return self._make_event is not None

    @property
    def is_watching(self) -> bool:
        """Whether this step is looked at."""
        return bool(self._handles)

    def batch_begins(self) -> bool:
        """A step begins; whether its backward is looked at."""
        self._step_ends()
        self._step += 1
        if self._step < self._next:
            return False
        self._resolve()
        self._next = self._step + (_FEW_STEPS if self.n < _N_FIRST_SAMPLES else _MANY_STEPS)
        if self._is_unresolved:  # a device so far behind that the last sample is still under way
            return False
        self._n_backwards = self._step_ns = 0
        trained = [one for one in self._parameters if one.requires_grad]
        self._handles = [one.register_post_accumulate_grad_hook(self._gradient_is_there) for one in trained]
        return True

    def before_backward(self) -> None:
        """A backward begins; does nothing where it is not looked at."""
        if not self._handles:
            return
        self._n_gradients = 0
        if self._make_event is None:
            self._begin_ns = self._last_ns = self._backward_ns()
            return
        if len(self._marks) == self._n_backwards:
            self._marks.append((self._make_event(), self._make_event(), self._make_event()))
        self._marks[self._n_backwards][0].record()

    def after_backward(self) -> None:
        """A backward is over; does nothing where it was not looked at.

        Raises:
            Exception: What went wrong in a gradient's hook.
        """
        if self._error is not None:
            self.stop()
            raise self._error
        if not self._handles or self._n_gradients == 0:
            return
        self.n_unused = max(self.n_unused or 0, len(self._handles) - self._n_gradients)
        if self._make_event is not None:
            self._marks[self._n_backwards][2].record()
        self._step_ns += self._last_ns - self._begin_ns
        self._n_backwards += 1

    def broadcast_begins(self) -> None:
        """Lightning's broadcast before a step begins: on a device its time is known from marks only, because the host
        also waits for the device's own work in it."""
        if self._broadcast_marks is None or self._step + 1 < self._next:
            return
        self._resolve()
        if not self._is_unresolved:
            self._is_broadcast_marked = False
            self._broadcast_marks[0].record()

    def broadcast_ends(self) -> None:
        """It is over."""
        if self._broadcast_marks is not None and self._step + 1 >= self._next and not self._is_unresolved:
            self._broadcast_marks[1].record()
            self._is_broadcast_marked = True

    def stop(self) -> None:
        """Takes the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def own_s(self) -> float | None:
        """Median seconds of a step's backward up to the last gradient; None before one was looked at."""
        self._resolve()
        return statistics.median(self._own_ns) / 1e9 if self._own_ns else None

    def waiting_s(self) -> float | None:
        """Median seconds that a device waits in a step, in backward and in Lightning's broadcast; None as for
        ``own_s``, and on a host, which the timeline knows better."""
        self._resolve()
        return statistics.median(self._waiting_ns) / 1e9 if self._waiting_ns else None

    def fail(self, error: Exception) -> None:
        """Keeps the first error of a place that must not raise; ``after_backward`` raises it."""
        self._error = self._error or error

    def _step_ends(self) -> None:
        """What was looked at is complete."""
        if not self._handles:
            return
        self.stop()
        if self._n_backwards == 0:
            return
        if self._make_event is not None:
            self._is_unresolved = True
            return
        self.n += 1
        self._own_ns.append(max(0, self._step_ns))

    def _gradient_is_there(self, _: Any) -> None:
        try:
            self._n_gradients += 1
            if self._make_event is not None:
                self._marks[self._n_backwards][1].record()
            else:
                self._last_ns = self._backward_ns()
        except Exception as error:  # noqa: BLE001 - raised by after_backward: here it would break the user's backward
            self.fail(error)

    def _backward_ns(self) -> int:
        """What this step's backward has taken so far, without callbacks that were called meanwhile."""
        self._timeline.charge()
        return self._timeline.phase_ns[PHASE_INDEX["backward"]]

    def _resolve(self) -> None:
        if not self._is_unresolved:
            return
        used = self._marks[: self._n_backwards]
        if not used[-1][2].query():
            return
        own_ms = sum(begin.elapsed_time(last) for begin, last, _ in used)
        waiting_ms = sum(last.elapsed_time(end) for _, last, end in used)
        if self._is_broadcast_marked and self._broadcast_marks is not None:
            begin, end = self._broadcast_marks
            waiting_ms += begin.elapsed_time(end)
        self.n += 1
        self._own_ns.append(max(0, int(own_ms * 1e6)))
        self._waiting_ns.append(max(0, int(waiting_ms * 1e6)))
        self._is_unresolved = False


class _Broadcast:
    """Encloses Lightning's broadcast, so that its time on the device is known where a step is looked at."""

    def __init__(self, watch: BackwardWatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        try:
            self._watch.broadcast_begins()
        except Exception as error:  # noqa: BLE001 - raised where it cannot break the training
            self._watch.fail(error)

    def __exit__(self, *exception: object) -> None:
        try:
            self._watch.broadcast_ends()
        except Exception as error:  # noqa: BLE001 - as above
            self._watch.fail(error)


def backward_watch(trainer: Any, timeline: Timeline, make_event: Callable[[], DeviceEvent] | None) -> Any:
    """The watch for a run; None with a reason where it cannot be told what is waiting.

    Args:
        trainer: With its strategy set up.
        timeline: Of the run.
        make_event: As for ``BackwardWatch``.

    Returns:
        (watch or None, reason)
    """
    from torch.nn.parallel import DistributedDataParallel

    if trainer.world_size == 1:
        return None, "one rank"
    model = trainer.strategy.model
    if not isinstance(model, DistributedDataParallel):
        return None, f"{type(trainer.strategy).__name__}: collectives are not at the end of backward"
    if trainer.strategy.root_device.type != "cpu" and make_event is None:
        return None, "the device's clock is off"
    return BackwardWatch(model.parameters(), timeline, make_event), ""


# -- one rank's summary -----------------------------------------------------------------------------------------------


def rank_summary(
    rank: int,
    steady: StageTimes | None,
    named: Sequence[NamedTime],
    epochs: Sequence[Epoch],
    watch: BackwardWatch | None,
) -> RankSummary | None:
    """What this rank has to tell; None before it measured a steady step."""
    if steady is None or steady.n_steps == 0:
        return None

    def mean_s(*phases: str) -> float:
        return sum(steady.phases[name].total_s for name in phases if name in steady.phases) / steady.n_steps

    def median_s(*phases: str) -> float:
        return sum(steady.phases[name].p50_s or 0.0 for name in phases if name in steady.phases)

    # There the host waits for the other ranks too, outside backward. Names are counted between epochs as well, steps
    # are not: no more than what the step has of it.
    loop_s = mean_s("callbacks", "logging", "other")
    outside = sum(one.share for one in named if one.kind == "loop" and one.name in (REDUCING, BROADCASTING))
    outside_s = min(outside * steady.span_s / steady.n_steps, loop_s)
    data_s, host_s = mean_s("data_wait", "transfer"), loop_s - outside_s
    own_backward_s = watch.own_s() if watch is not None else None
    waiting_s = watch.waiting_s() if watch is not None and watch.is_on_device else None
    if waiting_s is not None:
        # Where the host waits for the device says nothing of what the device does then: its work is what is left.
        waiting_s = min(waiting_s, max(0.0, steady.step_s.mean - data_s - host_s))
        compute_s = max(0.0, steady.step_s.mean - data_s - host_s - waiting_s)
        own_p50_s = max(0.0, steady.step_s.p50 - waiting_s)
    else:
        backward_s = min(own_backward_s or 0.0, mean_s("backward"))
        compute_s = mean_s("forward", "optimizer") + backward_s
        own_p50_s = median_s("data_wait", "transfer", "forward", "optimizer", "callbacks", "logging") + backward_s
        waiting_s = None if own_backward_s is None else mean_s("backward") - backward_s + outside_s
    parts_s = {"data": data_s, "compute": compute_s, "host": host_s}
    hosts = [one for one in named if one.kind in _HOST_KINDS and one.phase in ("callbacks", "logging")]
    slowest = max(hosts, key=lambda one: one.share, default=None)
    latest = next((one for one in reversed(epochs) if one.n_steps), None)
    wait = steady.phases.get("data_wait")
    return RankSummary(
        rank=rank,
        node=platform.node(),
        n_steps=steady.n_steps,
        step_s=steady.step_s.mean,
        own_s=sum(parts_s.values()),
        own_p50_s=own_p50_s,
        waiting_s=waiting_s,
        waiting_n=watch.n if watch is not None else 0,
        parts_s=parts_s,
        wait_share=wait.share if wait is not None else 0.0,
        slowest_name=f"{slowest.name}.{slowest.hook}" if slowest is not None else None,
        slowest_s=slowest.share * steady.span_s / steady.n_steps if slowest is not None else 0.0,
        n_batches=latest.n_steps if latest is not None else None,
        n_samples=latest.samples if latest is not None else None,
        n_unused=watch.n_unused if watch is not None else None,
        peak_bytes=_peak_bytes(),
    )


def _peak_bytes() -> int | None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, kibibytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


# -- all ranks together -----------------------------------------------------------------------------------------------


class Store(Protocol):
    """What is used of ``torch.distributed.Store``."""

    def set(self, key: str, value: Any) -> None:
        """Keeps a value."""

    def get(self, key: str) -> bytes:
        """A value; waits for it where it is not there."""

    def check(self, keys: list[str]) -> bool:
        """Whether all are there; never waits."""

    def delete_key(self, key: str) -> bool:
        """Forgets a value."""


class Exchange:
    """The ranks' summaries, by way of a store.

    Args:
        store: Common to all ranks.
        rank: This one.
        world_size: All.
        now_s: A monotonic clock.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._now_s = now_s
        self._sleep = sleep
        self._round = 0
        self._known: dict[int, RankSummary] = {}

    def share(self, summary: RankSummary | None, limit_s: float) -> Ranks | None:
        """Gives this rank's summary, and on rank 0 collects those of the others. Each rank calls it as often.

        Args:
            summary: None where this rank has nothing to tell, which is told.
            limit_s: How long rank 0 waits for the others.

        Returns:
            All ranks together on rank 0; on the others this rank alone. None where nothing is known.
        """
        begin = self._now_s()
        key = self._key(self._rank)
        self._store.set(key, msgspec.json.encode(summary).decode())
        # Not the last round's: rank 0 may be about to read that of a rank that is ahead, and would wait for the key.
        if self._round > 1:
            self._store.delete_key(self._key(self._rank, self._round - 2))
        if self._rank != 0:
            self._round += 1
            return None if summary is None else together((summary,), self._world_size)
        reported = self._wait(begin + limit_s)
        missing: list[MissingRank] = []
        for rank, told in zip(reported, self._read([self._key(rank) for rank in reported]), strict=True):
            try:
                found = msgspec.json.decode(told, type=RankSummary | None)
            except msgspec.DecodeError as error:
                missing.append(MissingRank(rank=rank, reason=f"it told what cannot be read: {error}"))
                continue
            if found is None:
                missing.append(MissingRank(rank=rank, reason="it measured nothing"))
            else:
                self._known[rank] = found
        for rank in sorted(set(range(self._world_size)) - set(reported)):
            then = "; figures are of an earlier report" if rank in self._known else ""
            missing.append(MissingRank(rank=rank, reason=f"it did not report within {limit_s:g} s{then}"))
        self._round += 1
        return together(tuple(self._known.values()), self._world_size, tuple(missing), self._now_s() - begin)

    def _key(self, rank: int, number: int | None = None) -> str:
        return f"{self._round if number is None else number}/{rank}"

    def _wait(self, until_s: float) -> list[int]:
        """The ranks that have reported, once all have or the time is up."""
        keys = [self._key(rank) for rank in range(self._world_size)]
        while not (is_complete := self._store.check(keys)) and self._now_s() < until_s:
            self._sleep(_POLL_S)
        if is_complete:
            return list(range(self._world_size))
        return [rank for rank, key in enumerate(keys) if self._store.check([key])]

    def _read(self, keys: list[str]) -> list[bytes]:
        """All values at once where the store can: one question a rank would take seconds for a thousand ranks."""
        has_more = getattr(self._store, "has_extended_api", None)
        if has_more is not None and has_more() and keys:
            values: list[bytes] = self._store.multi_get(keys)  # type: ignore[attr-defined]
            return values
        return [self._store.get(key) for key in keys]


class RankProbe:
    """This rank's part in the report about all ranks.

    Args:
        trainer: The Trainer, in its ``setup``. Every rank makes one of these in every run.
    """

    def __init__(self, trainer: Any) -> None:
        self.ranks: Ranks | None = None
        self.missing = "one rank"
        self._watch: BackwardWatch | None = None
        self._undo: seams.Undo | None = None
        self._is_closed = False
        self._trainer = trainer
        self._exchange = open_exchange(trainer)

    def loops_ready(self, loop: LoopProbe) -> None:
        """The model is wrapped for its strategy now."""
        clock = loop.main.device_clock
        make_event = clock.make_event if clock is not None else None
        self._watch, self.missing = backward_watch(self._trainer, loop.timeline, make_event)
        if self._watch is not None and self._watch.is_on_device:
            self._undo = seams.tap_sigterm_broadcast(self._trainer, _Broadcast(self._watch))

    @property
    def is_watching(self) -> bool:
        """Whether the backward of this step is looked at."""
        return self._watch is not None and self._watch.is_watching

    def batch_begins(self) -> bool:
        """A step begins; whether ``after_backward`` must be called in it."""
        return self._watch is not None and not self._is_closed and self._watch.batch_begins()

    def before_backward(self) -> None:
        """Backward begins."""
        if self._watch is not None:
            self._watch.before_backward()

    def after_backward(self) -> None:
        """Backward is over."""
        if self._watch is not None:
            self._watch.after_backward()

    def reasons(self) -> dict[str, str]:
        """What is missing, by its path in the session, and why."""
        if self.ranks is None:
            return {"ranks": "ranks are brought together at the end of a training epoch, and none was reached"}
        return {"ranks.summaries.waiting_s": self.missing} if self._watch is None else {}

    def close(self) -> None:
        """Takes out what hangs on the parameters and the loop."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.stop()
        if self._undo is not None:
            self._undo()
            self._undo = None

    def summary(self, loop: LoopProbe) -> RankSummary | None:
        """What this rank has to tell."""
        main = loop.main
        return rank_summary(
            self._trainer.global_rank, main.stage_times(), loop.named(), main.epochs_so_far(), self._watch
        )

    def share(self, loop: LoopProbe | None, is_last: bool) -> None:
        """Brings all ranks together in ``ranks``. A rank whose own probes failed must take part too.

        Args:
            loop: None where measuring has failed.
            is_last: Whether the run ends.
        """
        if self._trainer.world_size == 1:
            return
        failure: Exception | None = None
        summary = None
        try:
            summary = self.summary(loop) if loop is not None else None
        except Exception as error:  # noqa: BLE001 - raised again once the others know that nothing comes
            failure = error
        if self._exchange is not None:
            self.ranks = self._exchange.share(summary, RUN_LIMIT_S if is_last else EPOCH_LIMIT_S)
        else:
            steady = loop.main.stage_times() if loop is not None and failure is None else None
            self.ranks = gather_ranks(steady, self._trainer.strategy.root_device)
        if failure is not None:
            raise failure


def open_exchange(trainer: Any) -> Exchange | None:
    """An exchange over the store of the run's process group; None where there is none (other backends, one rank).

    Every rank must call it once a run.
    """
    import torch.distributed as dist

    number = next(_runs)
    if trainer.world_size == 1 or not (dist.is_available() and dist.is_initialized()):
        return None
    get_store = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get_store is None:
        return None
    store = dist.PrefixStore(f"lightning_perf/{number}", get_store())  # type: ignore[attr-defined]
    return Exchange(store, trainer.global_rank, trainer.world_size)


def gather_ranks(steady: StageTimes | None, device: Any) -> Ranks | None:
    """Where there is no store: reduces a few figures with the other ranks'. A collective: every rank must call it.

    Args:
        steady: This rank's steps; None when it has none, it then takes part without counting.
        device: Where the tensors that are exchanged must lie.

    Returns:
        The same record on every rank; None when no rank has measured anything.
    """
    from torchmetrics import MaxMetric, MeanMetric

    step_s = steady.step_s.mean if steady else math.nan
    wait = steady.phases.get("data_wait") if steady else None
    wait_share = wait.share if wait else (0.0 if steady else math.nan)
    values = []
    for value in (step_s, wait_share):
        for metric in (MeanMetric(nan_strategy="ignore"), MaxMetric(nan_strategy="ignore")):
            metric.to(device).update(value)
            values.append(float(metric.compute()))
    if not math.isfinite(values[1]):
        return None
    return Ranks(
        step_mean_s=values[0],
        step_max_s=values[1],
        data_wait_share_mean=values[2],
        data_wait_share_max=values[3],
    )
