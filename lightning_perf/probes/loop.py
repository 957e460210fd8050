"""Measure one run of the Trainer: put spans on its loops and pass their events to the stage probes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lightning_perf import seams
from lightning_perf.records import PHASES, NamedTime

from .clock import DeviceClock
from .processes import FetchWatch
from .spans import (
    N_COLUMNS,
    PHASE_INDEX,
    Edges,
    EdgeSpan,
    FetchSpan,
    MarkedSpan,
    NoSpan,
    Span,
    Timeline,
    phase_of,
)
from .steps import StageProbe

NO_SPAN = NoSpan()

REDUCING, BROADCASTING = "sync_dist", "sigterm_broadcast"
"""The named times in which metrics are reduced over the ranks, and in which Lightning asks all ranks at each step
whether one was told to end: in both a rank waits for the others."""

_STRATEGY_PHASES = {
    "batch_to_device": "transfer",
    "training_step": "forward",
    "validation_step": "forward",
    "test_step": "forward",
    "predict_step": "forward",
    "backward": "backward",
}
_MODULE_PARTS = {
    "optimizer_step": ("optimizer", "optimizer_step"),
    "optimizer_zero_grad": ("optimizer", "zero_grad"),
    "configure_gradient_clipping": ("optimizer", "gradient_clipping"),
    "lr_scheduler_step": ("scheduler", "lr_scheduler"),
}
_EDGES = frozenset({"training_step", "zero_grad", "backward", "optimizer_step"})
_BATCH_HOOKS = frozenset({"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"})
_STEP_HOOKS = frozenset(
    {
        *(
            f"on_{stage}_batch_{edge}"
            for stage in ("train", "validation", "test", "predict")
            for edge in ("start", "end")
        ),
        *("on_before_backward", "on_after_backward", "on_before_zero_grad"),
    }
)
_MAX_NAMES = 32
_CHEAP_HOOK_NS = 20_000  # a hook that takes less than the whole budget of a step has nothing to tell


class LoopProbe:
    """Measures where the time of a run goes. It is made in the Trainer's ``setup``.

    Time of ``owner``, the callback that measures, is kept apart. ``device_clock`` is None where the device has none.
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
        self.trainer = trainer
        self.pl_module = pl_module
        self.owner = owner
        self.stage = stage
        self.timeline = Timeline(now_ns, on_fail)
        self.validation = StageProbe(self.timeline, row=[0] * N_COLUMNS)
        self.fetch_watch: FetchWatch | None = None
        """Told of the fetches that it wants to look at, of the stage that the run is for."""
        self.next_close_step = 0
        """Steps done before the next one that more than the clock attends to; an epoch's first is one too."""
        self.is_close_step = False
        """Whether the step under way is such a one."""
        self.startup_ns: dict[str, int] = {}
        self.sanity_ns = 0
        self.first_step_end_ns: int | None = None
        self.missing: dict[str, str] = {}
        self.backed_off: list[str] = []
        self._cheap_hooks: set[tuple[str, str]] = set()
        self._spans: list[Span] = []
        own = Span(self.timeline, "callbacks", type(owner).__name__, "self", "on_train_batch_end")
        self._spans.append(own)
        self.main = StageProbe(self.timeline, device_clock, own=own)
        self._edge_spans: list[Span] = []
        self._named_at_first_step: dict[int, tuple[int, int]] = {}
        self._mark: Callable[[str], Any] | None = None  # only while a profiler window is open
        self.on_row_end: Callable[[], None] | None = None
        """Called where a step's time ends: the next fetch, the end of the epoch, a validation. Never raises. None in
        steps that nobody looks at."""
        self._by_action: dict[str, Span] = {}
        self._is_foreign_fetch = False
        self._done_before = (0, 0)  # epochs and optimizer steps of runs that this one goes on from
        self._is_between = True  # between epochs, or before the first
        self._is_validation_between = True
        self.on_lost: Callable[[BaseException, bool], None] | None = None
        """Called with what a callback's ``on_exception`` raised, and whether it was the owner's: Lightning then calls
        no further hook."""
        self._undos = seams.Undos()
        self._forget_spans: Callable[[], None] | None = None  # None where there is no profiler to tap

    # -- in and out ------------------------------------------------------------

    def install(self) -> None:
        """Install all spans and hooks."""
        self._forget_spans = seams.tap_profiler(self.trainer, self.span_for, self._undos)
        if self._forget_spans is None:
            self.missing["steady.phases"] = "this Trainer has no profiler to tap"
        collecting = partial(self._span, "logging", "metrics", "loop")
        self._keep(
            seams.tap_logging(self.trainer, collecting, self._logger_span, self.timeline.fail, self._undos),
            "steady.phases.logging",
            "this Lightning has no logger connector",
        )
        if self.trainer.world_size > 1:
            reducing = self._span("logging", REDUCING, "loop", "reduce")
            undo = seams.tap_reduce(self.trainer, reducing, self._undos)
            self._keep(undo, "steady.named.sync_dist", "no strategy.reduce found")
            broadcasting = self._span("other", BROADCASTING, "loop", "advance")
            seams.tap_sigterm_broadcast(self.trainer, broadcasting, self._undos)
        if self.stage == "fit":
            self._keep(
                seams.tap_validation(self.trainer, _Validation(self), self._undos),
                "validation",
                "the validation loop of this Lightning was not found",
            )

    def optimizers_ready(self, after_step: Callable[[Any], None]) -> None:
        """Time what manual optimization calls itself; call ``after_step`` with each optimizer that stepped."""
        if self.pl_module.automatic_optimization:
            return
        backward = self._span("backward", "backward", "loop", "")
        undo = seams.tap_backward(self.trainer, backward, self._undos)
        self._keep(undo, "steady.phases.backward", "no strategy.backward found")
        step = self._span("optimizer", "optimizer_step", "loop", "")
        seams.tap_optimizers(self.trainer.optimizers, step, after_step, self._undos)

    def back_off(self) -> None:
        """Stop timing hooks of other callbacks and of the module that take almost no time."""
        hooks = [span for span in self._spans if span.kind in ("callback", "module_hook", "progress_bar") and span.n]
        cheap = [span for span in hooks if span.ns < _CHEAP_HOOK_NS * span.n]
        self._cheap_hooks |= {(span.name, span.hook) for span in cheap}
        self.backed_off.append(f"hooks of callbacks that take less than {_CHEAP_HOOK_NS // 1000} us")
        self._by_action.clear()
        self._tap_again()

    def leave_own_hooks_untimed(self, hooks: Iterable[str]) -> None:
        """Stop timing hooks of the owner that have nothing left to do: the span would cost more than the hook."""
        self._cheap_hooks |= {(type(self.owner).__name__, hook) for hook in hooks}
        self._by_action.clear()
        self._tap_again()

    def _profiling(self, is_on: bool) -> None:
        self.main.profiling(is_on)
        self.validation.profiling(is_on)

    def enter_window(self, mark: Callable[[str], Any]) -> None:
        """Begin a profiler window: ``mark(phase)`` marks phases in its trace, and its steps count in no statistic."""
        self._mark = mark
        self._profiling(True)
        self._tap_again()

    def leave_window(self) -> None:
        """End the profiler window."""
        self._mark = None
        self._profiling(False)
        self._tap_again()

    def watch_edges(self, edges: Edges | None) -> None:
        """Notify ``edges`` when a part of a step begins or ends (see ``EDGES``); None stops it."""
        self.timeline.edges = edges
        for span in self._edge_spans:
            span.__class__ = Span if edges is None else EdgeSpan

    def _tap_again(self) -> None:
        if self._forget_spans is not None:
            self._forget_spans()

    def uninstall(self) -> None:
        """Restore everything that was replaced. Can be called twice."""
        self._undos.close()

    def freeze(self) -> None:
        """Stop measuring after a failure and keep what was measured."""
        self.timeline.freeze()
        self.run_ends()

    def _keep(self, undo: seams.Undo | None, path: str, reason: str) -> None:
        if undo is None:
            self.missing[path] = reason

    # -- which span an action gets ------------------------------------------------------------

    def span_for(self, action_name: str) -> Any:
        """Return the span of an action that Lightning announces; ``NoSpan`` if it needs none."""
        try:
            return self._known_span(action_name)
        except BaseException as error:  # an interrupt
            if action_name.endswith("on_exception"):
                self.is_lost(error, is_own=True)
            raise

    def is_lost(self, error: BaseException, is_own: bool) -> None:
        """End the run: an ``on_exception`` raised ``error``, so Lightning calls no further hook.

        ``is_own`` tells whether the owner's code raised it.
        """
        if self.on_lost is not None:
            self.on_lost(error, is_own)

    def _known_span(self, action_name: str) -> Any:
        try:
            span = self._by_action.get(action_name)
            if span is None or (self._mark is not None and span.kind != "self"):
                span = self._span_for(action_name)
                if isinstance(span, NoSpan):
                    return NoSpan(action_name)
                span.action = action_name
                if self._mark is None and isinstance(span, Span):
                    self._by_action[action_name] = span
        except Exception as error:  # noqa: BLE001 - reported; the action itself must be carried out
            self.timeline.fail(error)
            return NoSpan(action_name)
        if self._mark is None or not isinstance(span, Span) or span.kind == "self":
            return span
        return MarkedSpan(span, partial(self._mark, phase_of(span)))

    def _span_for(self, action_name: str) -> Any:
        action = seams.describe_action(self.trainer, action_name)
        if action.kind == "fetch":
            if self.stage == "fit" and action.owner == "val":
                return FetchSpan(self.timeline, self._validation_fetch_begins, self._validation_fetch_ends)
            return FetchSpan(self.timeline, self._fetch_begins, self._fetch_ends)
        if action.kind == "strategy" and action.hook in _STRATEGY_PHASES:
            return self._span(_STRATEGY_PHASES[action.hook], action.hook, "loop", action.hook)
        if action.kind in ("module", "datamodule") and action.hook in _BATCH_HOOKS:
            return self._batch_hook_span(action)
        if action.kind == "module":
            return self._module_span(action)
        if action.kind == "callback":
            span = self._callback_span(action)
            return (
                _LastHookSpan(self, span, action.target is self.owner)
                if action.hook == "on_exception" and span is not NO_SPAN
                else span
            )
        if action_name == "run_training_epoch" and self.stage == "fit":
            return _EpochSpan(self)
        if action_name == "save_checkpoint":
            return self._span("checkpoint", "save_checkpoint", "loop", "save_checkpoint")
        if action_name == "optimizer_step":
            return self._span("optimizer", "optimizer_step", "loop", "optimizer_step")
        return NO_SPAN

    def _batch_hook_span(self, action: seams.Action) -> Any:
        """Lightning's own batch hooks do nothing, or run within the span of ``batch_to_device``."""
        owner = self.pl_module if action.kind == "module" else self.trainer.datamodule
        if not seams.is_overridden(owner, action.hook):
            return NO_SPAN
        return self._span("transfer", action.owner, "module_hook", action.hook)

    def _module_span(self, action: seams.Action) -> Any:
        if action.hook == "configure_gradient_clipping" and not self._may_clip():
            return NO_SPAN
        if action.hook in _MODULE_PARTS:
            phase, name = _MODULE_PARTS[action.hook]
            return self._span(phase, name, "loop", action.hook)
        if (action.owner, action.hook) in self._cheap_hooks:
            return NO_SPAN
        if action.hook.startswith("on_") and seams.is_overridden(self.pl_module, action.hook):
            return self._span("callbacks", action.owner, "module_hook", action.hook)
        return NO_SPAN

    def _may_clip(self) -> bool:
        """Return whether gradients may be clipped; if not, the hook's time belongs to the optimizer span around it."""
        return bool(self.trainer.gradient_clip_val) or seams.is_overridden(
            self.pl_module, "configure_gradient_clipping"
        )

    def _callback_span(self, action: seams.Action) -> Any:
        callback = action.target
        if (action.owner, action.hook) in self._cheap_hooks:
            return NO_SPAN
        if callback is None:
            return self._span("callbacks", action.owner, "callback", action.hook)
        if not seams.is_overridden(callback, action.hook):
            return NO_SPAN
        if callback is self.owner:
            return self._span("callbacks", action.owner, "self", action.hook)
        if seams.is_checkpoint_callback(callback):
            return self._span("checkpoint", action.owner, "checkpoint_callback", action.hook)
        kind = "progress_bar" if seams.is_progress_bar(callback) else "callback"
        return self._span("callbacks", action.owner, kind, action.hook)

    def _logger_span(self, logger: str, method: str) -> Span:
        return self._span("logging", logger, "logger", method)

    def _span(self, phase: str, name: str, kind: str, hook: str) -> Span:
        span = Span(self.timeline, phase, name, kind, hook)
        if name in _EDGES and kind == "loop" and self._mark is None:
            self._edge_spans.append(span)
            if self.timeline.edges is not None:
                span.__class__ = EdgeSpan
        if self._mark is None:  # profiled steps count in no statistic
            self._spans.append(span)
        return span

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
        if self.on_row_end is not None:
            self.on_row_end()
        if self._is_between:
            self._begin_epoch()
        has_clock = main.fetch_begins()
        if watch is not None and main.n_steps >= watch.next_step:
            watch.begins(main.n_steps)
            return True
        return has_clock

    def _row_ends(self) -> None:
        if self.on_row_end is not None:
            self.on_row_end()

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
        if self.fetch_watch is not None and self.fetch_watch.is_looking:
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
            self._named_at_first_step = {id(span): (span.ns, span.n) for span in self._spans}

    def ends_within_hooks(self) -> None:
        """Count the last step if a callback's hook at its end raised."""
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        if self.main.is_in_batch and progress.processed > progress.completed:
            self.main.batch_ends()

    def epoch_ends(self) -> None:
        """End the epoch of the run's stage. Can be called twice."""
        self._row_ends()
        if self._is_between:
            return
        self.main.epoch_ends()
        self.timeline.set_base("epoch_boundary")
        self._is_between = True

    def run_ends(self) -> None:
        """End the run; a step that is under way does not count."""
        self.epoch_ends()

    def _validation_fetch_ends(self) -> None:
        self.validation.fetch_ends()

    def validation_begins(self, batch: Any) -> None:
        """Handle ``on_validation_batch_start`` inside fit."""
        if self._is_validation_between:
            self._begin_validation_batches()
        self.validation.batch_begins(batch)

    def validation_epoch_ends(self) -> None:
        """End the batches of validation inside fit."""
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

    # -- what it comes to ------------------------------------------------------------

    def checkpoint_ns(self) -> int:
        """Return nanoseconds spent saving checkpoints so far."""
        self.timeline.charge()
        return sum(span.ns for span in self._spans if span.phase == PHASE_INDEX["checkpoint"])

    def named(self) -> tuple[NamedTime, ...]:
        """Return time by name since the end of the first step, largest first, without the owner's."""
        if self.first_step_end_ns is None:
            return ()
        self.timeline.charge()
        own_ns = 0  # reading, probing and reporting are no part of the training's time
        merged: dict[tuple[str, str, str, int], list[int]] = {}
        for span in self._spans:
            ns_before, n_before = self._named_at_first_step.get(id(span), (0, 0))
            if span.kind == "self":
                own_ns += span.ns - ns_before
            elif span.n > n_before:
                total = merged.setdefault((span.name, span.kind, span.hook, span.phase), [0, 0])
                total[0] += span.ns - ns_before
                total[1] += span.n - n_before
        elapsed_ns = max(1, self.timeline.last_ns - self.first_step_end_ns - own_ns)
        times = [
            NamedTime(
                name=name,
                kind=kind,
                hook=hook,
                phase=PHASES[phase],
                total_s=ns / 1e9,
                share=ns / elapsed_ns,
                n_calls=n,
            )
            for (name, kind, hook, phase), (ns, n) in merged.items()
        ]
        return tuple(sorted(times, key=lambda t: -t.total_s)[:_MAX_NAMES])

    def own_ns(self) -> tuple[int, int]:
        """Return nanoseconds in the owner's hooks so far: in the hooks of steps, and in all others."""
        self.timeline.charge()
        own = [span for span in self._spans if span.kind == "self"]
        stepping_ns = sum(span.ns for span in own if span.hook in _STEP_HOOKS)
        return stepping_ns, sum(span.ns for span in own) - stepping_ns

    def n_spans(self) -> int:
        """Return how many spans were entered so far."""
        return sum(span.n for span in self._spans) + 3 * self.main.n_steps

    def expected_wall_s(self, step_ns: float) -> float:
        """Estimate the run's whole length at ``step_ns`` per step; the time so far if the Trainer has no limit."""
        trainer, elapsed_s = self.trainer, self.wall_ns() / 1e9
        lengths: list[float] = []
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            lengths.append((trainer.max_epochs - self._done_before[0]) * trainer.num_training_batches)
        if trainer.max_steps is not None and trainer.max_steps >= 0:
            made = trainer.global_step - self._done_before[1]
            # Several optimizers that step by turns count one step each in a batch.
            per_step = self.main.n_steps / made if made > 0 else math.inf
            lengths.append(
                (trainer.max_steps - self._done_before[1]) * min(per_step, float(trainer.accumulate_grad_batches))
            )
        total = min(lengths, default=math.inf)
        if self.stage != "fit" or not math.isfinite(total):
            return elapsed_s
        return elapsed_s + max(0.0, total - self.main.n_steps) * step_ns / 1e9

    def wall_ns(self) -> int:
        """Return nanoseconds since the start of the run."""
        return self.timeline.charge() - self.timeline.start_ns


class _LastHookSpan:
    """A callback's ``on_exception``: if it raises, Lightning calls no further hook."""

    def __init__(self, loop: LoopProbe, span: Span, is_own: bool) -> None:
        self._loop, self._span, self._is_own = loop, span, is_own
        self.action: str | None = None

    def __enter__(self) -> str | None:
        try:
            self._span.__enter__()
        except BaseException as error:  # an interrupt: the hook itself is not called
            self._loop.is_lost(error, is_own=True)
            raise
        return self.action

    def __exit__(self, *exception: Any) -> None:
        try:
            self._span.__exit__(*exception)
        except BaseException as error:  # an interrupt
            self._loop.is_lost(error, is_own=True)
            raise
        if exception and exception[1] is not None:
            self._loop.is_lost(exception[1], self._is_own)


class _EpochSpan:
    """The action around an epoch's batches: after it, time counts as epoch boundary."""

    def __init__(self, loop: LoopProbe) -> None:
        self._loop = loop
        self.action: str | None = None

    def __enter__(self) -> str | None:
        return self.action

    def __exit__(self, *exception: Any) -> None:
        try:
            if exception and exception[0] is not None:
                self._loop.ends_within_hooks()
            self._loop.epoch_ends()
        except Exception as error:  # noqa: BLE001 - reported; measuring must not break the training
            self._loop.timeline.fail(error)


class _Validation:
    """Encloses a validation run inside fit: a single phase of the training, and a stage with its own phases.

    Checkpoints saved when validation ends count as checkpoint time of the training.
    """

    def __init__(self, loop: LoopProbe) -> None:
        self._loop = loop
        self._outer: tuple[list[int], int, int, int, bool] | None = None

    def __enter__(self) -> None:
        loop, timeline = self._loop, self._loop.timeline
        try:
            is_sanity = bool(loop.trainer.sanity_checking)
            loop._row_ends()
            loop.main.pause()
            outer_row = timeline.swap_row(loop.validation.row)
            start_ns = timeline.last_ns
            self._outer = (outer_row, start_ns, loop.checkpoint_ns(), timeline.base.phase, is_sanity)
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
            outer_row, start_ns, checkpoint_before_ns, base_phase, is_sanity = self._outer
            loop.validation_epoch_ends()
            timeline.swap_row(outer_row)
            total_ns = timeline.last_ns - start_ns
            checkpoint_ns = loop.checkpoint_ns() - checkpoint_before_ns
            outer_row[PHASE_INDEX["checkpoint"]] += checkpoint_ns
            outer_row[PHASE_INDEX["startup" if is_sanity else "validation"]] += total_ns - checkpoint_ns
            timeline.base.phase = base_phase
            timeline.current = timeline.stack.pop()
            self._outer = None
            if is_sanity:
                loop.sanity_ns += total_ns
                loop.validation = StageProbe(timeline, row=[0] * N_COLUMNS)
                loop._is_validation_between = True
        except Exception as error:  # noqa: BLE001 - reported, as above
            timeline.fail(error)
