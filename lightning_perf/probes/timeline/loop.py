"""Measure one run of the Trainer: put spans on its loops and pass their events to the stage probes."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from lightning_perf import seams
from lightning_perf.probes import plain
from lightning_perf.probes.clock import DeviceClock, DeviceEvent
from lightning_perf.probes.model.tokens import BatchUnits
from lightning_perf.probes.telemetry.processes import FetchWatch
from lightning_perf.records import NamedTime

from .action_spans import ActionSpans
from .named_times import NamedTimes
from .spans import N_COLUMNS, PHASE_INDEX, FetchSpan, Span, Timeline
from .stage import StageTimer

REDUCING, BROADCASTING = "sync_dist", "sigterm_broadcast"
"""Names of the spans in which metrics are reduced over the ranks, and in which Lightning asks all ranks at each step
whether to stop: in both, a rank waits for the others."""

RECORDING = "anomaly_detection"
"""Name of the spans in which anomaly detection records the stack of an operator."""

_CHECKED_OUTPUTS = 3


class LoopTimer(ActionSpans):
    """Measures the time of each part of a run. Created in the Trainer's ``setup``.

    Time of ``owner``, the callback that measures, is counted separately. ``device_clock`` is None without one.
    """

    def __init__(
        self,
        trainer: Any,
        pl_module: Any,
        owner: Any,
        stage: str,
        now_ns: Callable[[], int],
        on_fail: Callable[[Exception], None],
        device_clock: DeviceClock | None = None,
    ) -> None:
        super().__init__(trainer, pl_module, owner, Timeline(now_ns, on_fail))
        self.stage, self.units = stage, BatchUnits()
        self.validation = StageTimer(self.timeline, phase_ns=[0] * N_COLUMNS, units=self.units)
        self.fetch_watch: FetchWatch | None = None
        """Samples fetches of the run's stage."""
        self.next_instrumented_step = 0
        """Index of the next step that a probe observes; an epoch's first step is always observed."""
        self.is_instrumented_step = False
        """Whether a probe observes the current step."""
        self.startup_ns: dict[str, int] = {}
        self.sanity_ns = 0
        self.first_step_end_ns: int | None = None
        self.missing: dict[str, str] = {}
        own = partial(self._span, "callbacks", type(owner).__name__, "self")
        self.main = StageTimer(self.timeline, device_clock, own=own("on_train_batch_end"), units=self.units)
        self.diagnosing = own("diagnosis")  # between two steps: its time is reporting, not that of the hook
        self._named = NamedTimes(self.timeline, self._spans)
        self.main.on_left_out = self._named.leave_out
        self.on_record_end: Callable[[], None] | None = None
        """Called where a sampled step's time ends: the next fetch, the end of the epoch, a validation. Never raises."""
        self.outputs_have_graph: bool | None = None
        """Whether outputs of evaluation batches have an autograd graph; None before the first."""
        self._n_outputs_checked = 0
        self._is_foreign_fetch = False
        self._done_before = (0, 0)  # epochs and optimizer steps before this run: of a checkpoint, or of an earlier fit
        self._is_between = True  # between epochs, or before the first
        self._is_validation_between = True
        self._undos = seams.Undos()
        self._recording: dict[str, Span] = {}  # by phase

    # -- setup and restoring ------------------------------------------------------------

    def install(self) -> None:
        profiling = self._span("callbacks", type(seams.user_profiler(self.trainer)).__name__, "profiler", "profile")
        self._forget_spans = seams.tap_profiler(self.trainer, self.span_for, self._undos, profiling)
        if self._forget_spans is None:
            self.missing["steady.phases"] = "this Trainer has no profiler to tap"
        collecting = partial(self._span, "logging", "metrics", "loop")

        def logger_span(logger: str, method: str) -> Span:
            return self._span("logging", logger, "logger", method)

        is_tapped = seams.tap_logging(self.trainer, collecting, logger_span, self.timeline.fail, self._undos)
        self._note_missing(is_tapped, "steady.phases.logging", "this Lightning has no logger connector")
        if self.trainer.world_size > 1:
            reducing = self._span("logging", REDUCING, "loop", "reduce")
            has_reduce = seams.tap_reduce(self.trainer, reducing, self._undos)
            self._note_missing(has_reduce, "steady.named.sync_dist", "no strategy.reduce found")
            broadcasting = self._span("other", BROADCASTING, "loop", "advance")
            seams.tap_sigterm_broadcast(self.trainer, broadcasting, self._undos)
        if self.stage == "fit":
            is_tapped = seams.tap_validation(self.trainer, ValidationSpan(self), self._undos)
            self._note_missing(is_tapped, "validation", "the validation loop of this Lightning was not found")
            iterating = self._span("epoch_boundary", "val_dataloader", "loop", "iter")
            seams.tap_validation_iteration(self.trainer, iterating, self._undos)
            iterating = self._span("epoch_boundary", "train_dataloader", "loop", "iter")
            is_tapped = seams.tap_epoch_iteration(self.trainer, iterating, self._undos)
            self._note_missing(is_tapped, "steady.named.iter", "the start of an epoch's iteration was not found")

    def optimizers_ready(self, after_step: Callable[[Any], None]) -> None:
        """Time the calls of manual optimization; call ``after_step`` with each optimizer that stepped."""
        if not seams.has_trainer(self.trainer) or self.pl_module.automatic_optimization:
            return
        backward = self._span("backward", "backward", "loop", "")
        is_tapped = seams.tap_backward(self.trainer, backward, self._undos)
        self._note_missing(is_tapped, "steady.phases.backward", "no strategy.backward found")
        step = self._span("optimizer", "optimizer_step", "loop", "")
        seams.tap_optimizers(self.trainer.optimizers, step, after_step, self._undos)

    def time_anomaly_detection(self) -> None:
        """Time the stacks that anomaly detection records, from now on. Can be called twice."""
        if self._recording:
            return
        self._recording = {
            phase: self._span(phase, RECORDING, "loop", "format_stack") for phase in ("forward", "backward")
        }

        def recording() -> AbstractContextManager[Any]:
            return self._recording.get(self.timeline.phase()) or nullcontext()

        seams.tap_stack_recording(recording, self._undos)

    def profiling(self, mark: Callable[[str], Any] | None) -> None:
        """Begin a profiler window, or end it with None; statistics exclude its steps.

        ``mark(phase)`` marks phases in its trace.
        """
        self._mark = mark
        self.main.profiling(mark is not None)
        self.validation.profiling(mark is not None)
        self._tap_again()

    def uninstall(self) -> None:
        """Restore everything that was replaced. Can be called twice."""
        self._undos.close()

    def freeze(self) -> None:
        """Stop measuring after a failure and keep what was measured."""
        self.timeline.freeze()
        self.epoch_ends()

    def _note_missing(self, is_tapped: bool, path: str, reason: str) -> None:
        """Note why the figures at ``path`` are None, unless their seam was tapped."""
        if not is_tapped:
            self.missing[path] = reason

    def _span_for(self, action_name: str) -> Any:
        action = seams.describe_action(self.trainer, action_name)
        if action.kind == "fetch":
            if self.stage == "fit" and action.owner == "val":
                return FetchSpan(self.timeline, self._validation_fetch_begins, lambda: self.validation.fetch_ends())
            return FetchSpan(self.timeline, self._fetch_begins, self._fetch_ends)
        if action_name == "run_training_epoch" and self.stage == "fit":
            return _EpochSpan(self)
        return self._usual_span(action_name, action)

    # -- the loop's events ------------------------------------------------------------

    def _fetch_begins(self) -> bool:
        """Start a fetch; return whether its end must be reported too."""
        main, watch = self.main, self.fetch_watch
        if self.timeline.stack:
            if self._is_in_callback():
                self._is_foreign_fetch = True
                return True
            if not main.is_in_batch:
                self.timeline.unwind()
        if self.on_record_end is not None:
            self.on_record_end()
        if self._is_between:
            self._begin_epoch()
        has_clock = main.fetch_begins()
        if watch is not None and main.n_steps >= watch.next_step:
            watch.begins(main.n_steps)
            return True
        return has_clock

    @property
    def is_profiling(self) -> bool:
        """Whether a profiler window is open."""
        return self._mark is not None

    def _is_in_callback(self) -> bool:
        """Return whether a callback runs a training of its own, as learning rate and batch size finders do."""
        return any(span.kind == "callback" for span in (*self.timeline.stack, self.timeline.current))

    def _fetch_ends(self) -> None:
        if self._is_foreign_fetch:
            self._is_foreign_fetch = False
            return
        if self.fetch_watch is not None and self.fetch_watch.is_sampling:
            self.fetch_watch.ends()
        self.main.fetch_ends()

    def _validation_fetch_begins(self) -> bool:
        if self._is_validation_between:
            self._begin_validation_batches()
        return self.validation.fetch_begins()

    def batch_begins(self, batch: Any) -> None:
        """Handle ``on_*_batch_start`` of the run's stage; after an epoch's first batch ``main`` can be called."""
        if self._is_between:
            self._begin_epoch()
        self.main.batch_begins(batch)

    def batch_ends(self, batch: Any = None) -> None:
        """Handle ``on_*_batch_end`` of the run's stage; ``main`` can be called instead after the run's first batch."""
        self.main.batch_ends(batch)
        if self.first_step_end_ns is None:
            self.first_step_end_ns = self.timeline.charge()
            self._named.begin()

    def count_step_whose_end_hook_raised(self) -> None:
        """Count the step under way if a callback raised in ``on_train_batch_end``: the step itself was done."""
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        if self.main.is_in_batch and progress.processed > progress.completed:
            self.main.batch_ends()

    def epoch_ends(self) -> None:
        """End the epoch of the run's stage, or the run; a step under way does not count. Can be called twice."""
        if self.on_record_end is not None:
            self.on_record_end()
        if self._is_between:
            return
        self.main.epoch_ends()
        self.timeline.set_base("epoch_boundary")
        self._is_between = True

    def evaluation_begins(self, batch: Any) -> None:
        """Handle the start of a batch of validation, testing or prediction."""
        if self.stage != "fit":
            self.batch_begins(batch)
            return
        if self._is_validation_between:
            self._begin_validation_batches()
        self.validation.batch_begins(batch)

    def evaluation_ends(self, outputs: Any) -> None:
        """Handle the end of an evaluation batch; check whether the outputs of the first ones have an autograd graph."""
        if self.stage == "fit":
            self.validation.batch_ends()
        else:
            self.batch_ends()
        if self._n_outputs_checked < _CHECKED_OUTPUTS and not self.trainer.sanity_checking:
            self._n_outputs_checked += 1
            tensors = plain.tensors_in(outputs, 3, in_objects=False, left=plain.search_limit())
            has_graph = any(plain.field(tensor, "grad_fn") is not None for tensor in tensors)
            self.outputs_have_graph = bool(self.outputs_have_graph) or has_graph

    def evaluation_epoch_ends(self) -> None:
        """End the batches of validation, testing or prediction."""
        if self.stage == "fit":
            self._validation_epoch_ends()
        else:
            self.epoch_ends()

    def _validation_epoch_ends(self) -> None:
        self.validation.epoch_ends()
        self.timeline.set_base("epoch_boundary")
        self._is_validation_between = True

    def _begin_validation_batches(self) -> None:
        self._is_validation_between = False
        self.validation.epoch_begins(0)
        self.timeline.set_base("other")

    def _begin_epoch(self) -> None:
        self._is_between = False
        timeline = self.timeline
        timeline.charge()
        if not self.startup_ns and self.main.n_steps == 0:
            self.startup_ns = {name: timeline.phase_ns[i] for name, i in PHASE_INDEX.items() if timeline.phase_ns[i]}
            self._done_before = (self.trainer.current_epoch, self.trainer.global_step)
        self.main.epoch_begins(self.trainer.current_epoch)
        timeline.set_base("other")

    # -- results ------------------------------------------------------------

    def current_phase(self) -> str:
        """Return the current phase; always ``"validation"`` within validation inside fit."""
        is_within = self.timeline.phase_ns is self.validation.phase_ns
        return "validation" if is_within else self.timeline.phase()

    def n_spans(self) -> int:
        """Return how many spans were entered so far."""
        return sum(span.n for span in self._spans) + 3 * self.main.n_steps

    def named(self) -> tuple[NamedTime, ...]:
        """Return time by name, largest first, without the owner's: see ``NamedTimes``."""
        return self._named.records()

    def included_s(self) -> float:
        """Return the seconds that the shares of ``named`` refer to; 0 before the end of the first step."""
        return self._named.included_ns() / 1e9

    def expected_wall_s(self, step_ns: float) -> float:
        """Estimate the run's whole length at ``step_ns`` per step; the time so far if the Trainer has no limit."""
        elapsed_s, left = self.wall_ns() / 1e9, self.batches_left()
        return elapsed_s + left * step_ns / 1e9 if self.stage == "fit" and math.isfinite(left) else elapsed_s

    def batches_left(self) -> float:
        """Estimate how many batches are still to be trained; infinity if the Trainer has no limit."""
        trainer, step_ns = self.trainer, self.main.recent_median_ns()
        lengths = [self.main.n_steps + seams.time_left_s(trainer) * 1e9 / step_ns if step_ns else math.inf]
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            lengths.append((trainer.max_epochs - self._done_before[0]) * trainer.num_training_batches)
        if trainer.max_steps is not None and trainer.max_steps >= 0:
            made = trainer.global_step - self._done_before[1]
            # ``global_step`` counts the steps of all optimizers: several per batch if there are several optimizers.
            seen = self.main.n_steps / made if made > 0 else math.inf
            per_step = min(seen, float(trainer.accumulate_grad_batches))
            lengths.append((trainer.max_steps - self._done_before[1]) * per_step)
        return max(0.0, min(lengths) - self.main.n_steps)

    def make_event(self) -> Callable[[], DeviceEvent] | None:
        """Return a function that makes an event of the device's clock; None without such a clock."""
        clock = self.main.device_clock
        return None if clock is None else clock.make_event

    def wall_ns(self) -> int:
        """Return nanoseconds since the start of the run."""
        return self.timeline.charge() - self.timeline.start_ns


class _EpochSpan:
    """The action around an epoch's batches: after it, time counts as epoch boundary."""

    def __init__(self, loop: LoopTimer) -> None:
        self._loop = loop
        self.action: str | None = None

    def __enter__(self) -> str | None:
        return self.action

    def __exit__(self, *exception: Any) -> None:
        try:
            if exception and exception[0] is not None:
                self._loop.count_step_whose_end_hook_raised()
            self._loop.epoch_ends()
        except Exception as error:  # noqa: BLE001 - reported; measuring must not break the training
            self._loop.timeline.fail(error)


class ValidationSpan:
    """Encloses a validation run inside fit: a single phase of the training, and a stage with its own phases.

    Checkpoints saved when validation ends count as checkpoint time of the training.
    """

    def __init__(self, loop: LoopTimer) -> None:
        self._loop = loop
        self._outer: tuple[list[int], int, int, int, bool] | None = None

    def __enter__(self) -> None:
        loop, timeline = self._loop, self._loop.timeline
        try:
            is_sanity = bool(loop.trainer.sanity_checking)
            if loop.on_record_end is not None:
                loop.on_record_end()
            loop.main.pause()
            outer_ns = timeline.swap_counters(loop.validation.phase_ns)
            start_ns = timeline.last_ns
            self._outer = (outer_ns, start_ns, loop.checkpoint_ns(), timeline.base.phase, is_sanity)
            timeline.stack.append(timeline.current)
            timeline.current = timeline.base
            timeline.base.phase = PHASE_INDEX["epoch_boundary"]
        except Exception as error:  # noqa: BLE001 - reported; measuring must not break the training
            timeline.fail(error)

    def __exit__(self, *exception: Any) -> None:
        loop, timeline = self._loop, self._loop.timeline
        try:
            if self._outer is None:
                return
            outer_ns, start_ns, checkpoint_before_ns, base_phase, is_sanity = self._outer
            loop._validation_epoch_ends()
            timeline.swap_counters(outer_ns)
            total_ns = timeline.last_ns - start_ns
            checkpoint_ns = loop.checkpoint_ns() - checkpoint_before_ns
            outer_ns[PHASE_INDEX["checkpoint"]] += checkpoint_ns
            outer_ns[PHASE_INDEX["startup" if is_sanity else "validation"]] += total_ns - checkpoint_ns
            timeline.base.phase = base_phase
            timeline.current = timeline.stack.pop() if timeline.stack else timeline.base  # as in `Span`
            self._outer = None
            if is_sanity:
                loop.sanity_ns += total_ns
                loop.validation = StageTimer(timeline, phase_ns=[0] * N_COLUMNS, units=loop.units)
                loop._is_validation_between = True
        except Exception as error:  # noqa: BLE001 - reported, as above
            timeline.fail(error)
