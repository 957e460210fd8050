"""Choose the span of each action that Lightning announces."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lightning_perf import seams

from .spans import PHASE_INDEX, ListenedSpan, MarkedSpan, NullSpan, PhaseListener, Span, Timeline, phase_of

NULL_SPAN = NullSpan()

_STRATEGY_PHASES = {
    "batch_to_device": "transfer", "training_step": "forward", "validation_step": "forward", "test_step": "forward",
    "predict_step": "forward", "backward": "backward",
}  # fmt: skip
_MODULE_PARTS = {
    "optimizer_step": ("optimizer", "optimizer_step"),
    "optimizer_zero_grad": ("optimizer", "zero_grad"),
    "configure_gradient_clipping": ("optimizer", "gradient_clipping"),
    "lr_scheduler_step": ("scheduler", "lr_scheduler"),
}
_LISTENED = frozenset({"training_step", "zero_grad", "backward", "optimizer_step"})
_BATCH_HOOKS = frozenset({"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"})
_STEP_HOOKS = frozenset({
    *(f"on_{stage}_batch_{edge}" for stage in ("train", "validation", "test", "predict") for edge in ("start", "end")),
    "on_before_backward", "on_after_backward", "on_before_zero_grad",
})  # fmt: skip
_CHEAP_HOOK_NS = 20_000  # a hook that takes less than the overhead budget of a step is not worth timing


class ActionSpans:
    """The spans of one run.

    A subclass chooses the span of an action in ``_span_for``, with ``_usual_span`` for those that it does not know.
    """

    def __init__(self, trainer: Any, pl_module: Any, owner: Any, timeline: Timeline) -> None:
        self.trainer, self.pl_module, self.owner = trainer, pl_module, owner
        self.timeline = timeline
        self.backed_off: list[str] = []
        self.on_lost: Callable[[BaseException, bool], None] = lambda error, is_own: None
        """Called with what a callback's ``on_exception`` raised, and whether it was the owner's: Lightning then calls
        no further hook."""
        self._spans: list[Span] = []
        self._listened_spans: list[Span] = []
        self._by_action: dict[str, Span] = {}
        self._cheap_hooks: set[tuple[str, str]] = set()
        self._mark: Callable[[str], Any] | None = None  # only while a profiler window is open
        self._forget_spans: Callable[[], None] | None = None  # None without a profiler to tap

    def _span_for(self, action_name: str) -> Any:
        raise NotImplementedError

    def _usual_span(self, action_name: str, action: seams.Action) -> Any:
        if action.kind == "strategy" and action.hook in _STRATEGY_PHASES:
            return self._span(_STRATEGY_PHASES[action.hook], action.hook, "loop", action.hook)
        if action.kind in ("module", "datamodule") and action.hook in _BATCH_HOOKS:
            return self._batch_hook_span(action)
        if action.kind == "module":
            return self._module_span(action)
        if action.kind == "callback":
            span = self._callback_span(action)
            is_last_hook = action.hook == "on_exception" and span is not NULL_SPAN
            return _LastHookSpan(self, span, action.target is self.owner) if is_last_hook else span
        if action_name == "save_checkpoint":
            return self._span("checkpoint", "save_checkpoint", "loop", "save_checkpoint")
        if action_name == "optimizer_step":
            return self._span("optimizer", "optimizer_step", "loop", "optimizer_step")
        return NULL_SPAN

    def span_for(self, action_name: str) -> Any:
        """Return the span of an action that Lightning announces; ``NullSpan`` if it needs none."""
        try:
            return self._known_span(action_name)
        except BaseException as error:  # an interrupt
            if action_name.endswith("on_exception"):
                self.on_lost(error, True)
            raise

    def _known_span(self, action_name: str) -> Any:
        try:
            span = self._by_action.get(action_name)
            if span is None or (self._mark is not None and span.kind != "self"):
                span = self._span_for(action_name)
                if isinstance(span, NullSpan):
                    return NullSpan(action_name)
                span.action = action_name
                if self._mark is None and isinstance(span, Span):
                    self._by_action[action_name] = span
        except Exception as error:  # noqa: BLE001 - reported; the action itself must be carried out
            self.timeline.fail(error)
            return NullSpan(action_name)
        if self._mark is None or not isinstance(span, Span) or span.kind == "self":
            return span
        return MarkedSpan(span, partial(self._mark, phase_of(span)))

    def _batch_hook_span(self, action: seams.Action) -> Any:
        """Return the span of a user's batch hook; Lightning's own do nothing, or run within ``batch_to_device``."""
        owner = self.pl_module if action.kind == "module" else self.trainer.datamodule
        if not seams.is_overridden(owner, action.hook):
            return NULL_SPAN
        return self._span("transfer", action.owner, "module_hook", action.hook)

    def _module_span(self, action: seams.Action) -> Any:
        if action.hook == "configure_gradient_clipping" and not (
            self.trainer.gradient_clip_val or seams.is_overridden(self.pl_module, action.hook)
        ):
            return NULL_SPAN  # its time belongs to the span of the optimizer around it
        if action.hook in _MODULE_PARTS:
            phase, name = _MODULE_PARTS[action.hook]
            return self._span(phase, name, "loop", action.hook)
        if (action.owner, action.hook) in self._cheap_hooks:
            return NULL_SPAN
        if action.hook.startswith("on_") and seams.is_overridden(self.pl_module, action.hook):
            return self._span("callbacks", action.owner, "module_hook", action.hook)
        return NULL_SPAN

    def _callback_span(self, action: seams.Action) -> Any:
        callback = action.target
        if (action.owner, action.hook) in self._cheap_hooks:
            return NULL_SPAN
        if callback is None:
            return self._span("callbacks", action.owner, "callback", action.hook)
        if not seams.is_overridden(callback, action.hook):
            return NULL_SPAN
        if callback is self.owner:
            return self._span("callbacks", action.owner, "self", action.hook)
        if seams.is_checkpoint_callback(callback):
            return self._span("checkpoint", action.owner, "checkpoint_callback", action.hook)
        kind = "progress_bar" if seams.is_progress_bar(callback) else "callback"
        return self._span("callbacks", action.owner, kind, action.hook)

    def _span(self, phase: str, name: str, kind: str, hook: str) -> Span:
        span = Span(self.timeline, phase, name, kind, hook)
        if name in _LISTENED and kind == "loop" and self._mark is None:
            self._listened_spans.append(span)
            if self.timeline.phase_listener is not None:
                span.__class__ = ListenedSpan
        if self._mark is None:  # profiled steps count in no statistic
            self._spans.append(span)
        return span

    def back_off(self) -> None:
        """Stop timing hooks of other callbacks and of the module that take almost no time."""
        hooks = [span for span in self._spans if span.kind in ("callback", "module_hook", "progress_bar")]
        self._cheap_hooks |= {(span.name, span.hook) for span in hooks if span.ns < _CHEAP_HOOK_NS * span.n}
        self.backed_off.append(f"hooks of callbacks and of the module that take less than {_CHEAP_HOOK_NS // 1000} µs")
        self._by_action.clear()
        self._tap_again()

    def leave_own_hooks_untimed(self, hooks: Iterable[str]) -> None:
        """Stop timing hooks of the owner that have nothing left to do: the span would cost more than the hook."""
        self._cheap_hooks |= {(type(self.owner).__name__, hook) for hook in hooks}
        self._by_action.clear()
        self._tap_again()

    def _tap_again(self) -> None:
        """Choose the span of each action again, at its next announcement."""
        if self._forget_spans is not None:
            self._forget_spans()

    def listen(self, listener: PhaseListener | None) -> None:
        """Notify ``listener`` when a part of a step begins or ends (see ``_LISTENED``); None stops it."""
        self.timeline.phase_listener = listener
        for span in self._listened_spans:
            span.__class__ = Span if listener is None else ListenedSpan

    def checkpoint_ns(self) -> int:
        """Return nanoseconds spent saving checkpoints so far."""
        self.timeline.charge()
        return sum(span.ns for span in self._spans if span.phase == PHASE_INDEX["checkpoint"])

    def own_ns(self) -> tuple[int, int]:
        """Return nanoseconds in the owner's hooks so far: in the hooks of steps, and in all others."""
        self.timeline.charge()
        own = [span for span in self._spans if span.kind == "self"]
        stepping_ns = sum(span.ns for span in own if span.hook in _STEP_HOOKS)
        return stepping_ns, sum(span.ns for span in own) - stepping_ns


class _LastHookSpan:
    """A callback's ``on_exception``: if it raises, Lightning calls no further hook."""

    def __init__(self, actions: ActionSpans, span: Span, is_own: bool) -> None:
        self._actions, self._span, self._is_own = actions, span, is_own
        self.action: str | None = None

    def __enter__(self) -> str | None:
        try:
            self._span.__enter__()
            return self.action
        except BaseException as error:  # an interrupt: the hook itself is not called
            self._actions.on_lost(error, True)
            raise

    def __exit__(self, *exception: Any) -> None:
        try:
            self._span.__exit__(*exception)
            if exception and exception[1] is not None:
                self._actions.on_lost(exception[1], self._is_own)
        except BaseException as error:  # an interrupt
            self._actions.on_lost(error, True)
            raise
