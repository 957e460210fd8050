"""Enter a span for every action that Lightning's loops announce to the profiler."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from .actions import base_class
from .undo import Undos, change_attribute

SpanFor = Callable[[str], AbstractContextManager[Any]]
"""The span for an action that Lightning's loops announce to the profiler. Entering it yields the action's name."""


def tap_profiler(
    trainer: Any, span_for: SpanFor, undos: Undos, profiling: AbstractContextManager[Any] | None = None
) -> Callable[[], None] | None:
    """Replace ``profile``, ``start`` and ``stop`` of the Trainer's profiler, so that each action enters its span.

    The profiler stays the user's own object. Lightning's loops wrap every hook in ``trainer.profiler.profile(name)``.
    Lightning's default pass-through profiler is not called: a span costs less than the generator that it makes each
    time. Any other profiler is called as before, within ``profiling``. ``span_for`` is called once per action name.

    Return a function after which ``span_for`` is called again for every action; None if this Trainer has no profiler
    that can be patched.
    """
    profiler = getattr(trainer, "profiler", None)
    if base_class(type(profiler), ("Profiler",)) is None or not hasattr(profiler, "__dict__"):
        return None
    spans = _Spans(profiler, span_for, profiling or nullcontext())
    replaced = {"profile": spans.__getitem__, "start": spans.start, "stop": spans.stop}
    undos.note(spans.release)
    for name, method in replaced.items():
        change_attribute(profiler, name, _Replaced(profiler, name, method), undos)
    return spans.clear


class _Replaced(partial):  # type: ignore[type-arg]
    """A replaced method of a profiler; a copy or pickle of the profiler has its own instead.

    A ``partial``, which is called without a Python frame: this is called for every action.
    """

    def __new__(cls, profiler: Any, name: str, method: Callable[[str], Any]) -> "_Replaced":
        """Make one that calls ``method``."""
        made = super().__new__(cls, method)
        made.__dict__.update(profiler=profiler, name=name)
        return made

    def __reduce__(self) -> Any:
        """Copy as the profiler's own method."""
        return _own_method, (self.__dict__["profiler"], self.__dict__["name"])


def _own_method(profiler: Any, name: str) -> Any:
    return getattr(type(profiler), name).__get__(profiler)


class _Spans(dict[str, "AbstractContextManager[Any]"]):
    """Context managers by action name: after the first call for a name, ``profile`` is only a lookup."""

    def __init__(self, profiler: Any, span_for: SpanFor, profiling: AbstractContextManager[Any]) -> None:
        super().__init__()
        self.profiling = profiling
        self.span_for = span_for
        self.profile = profiler.profile
        self.is_silent = type(profiler).__name__ == "PassThroughProfiler"
        self.is_entering = False
        """Whether the profiler's own ``profile`` runs now, which calls its ``start`` and ``stop``."""
        self.own_start, self.own_stop = profiler.start, profiler.stop
        self.is_released = False

    def start(self, action_name: str) -> Any:
        """Enter the span of an action that is started and stopped by hand."""
        if self.is_silent and not self.is_released:
            self.span_of(action_name).__enter__()
            return None
        result = self.own_start(action_name)
        if not (self.is_entering or self.is_released):
            self.span_of(action_name).__enter__()
        return result

    def stop(self, action_name: str) -> Any:
        """Exit the span of an action that is started and stopped by hand."""
        if not (self.is_entering or self.is_released):
            self.span_of(action_name).__exit__(None, None, None)
            if self.is_silent:
                return None
        return self.own_stop(action_name)

    def span_of(self, action_name: str) -> AbstractContextManager[Any]:
        """Return the span of an action, without the profiler."""
        context = self[action_name]
        return context.span if isinstance(context, _ProfileAndSpan) else context

    def release(self) -> None:
        """Only call the profiler itself from now on, in case somebody kept a replaced method."""
        self.is_released = True
        self.clear()

    def __missing__(self, action_name: str) -> AbstractContextManager[Any]:
        if self.is_released:
            return self.profile(action_name)  # type: ignore[no-any-return]
        span = self.span_for(action_name)
        context = span if self.is_silent else _ProfileAndSpan(self, span, action_name)
        self[action_name] = context
        return context


class _ProfileAndSpan:
    """Enters the user's profiler, then the span; reused for every call, since it keeps its open contexts on a stack."""

    __slots__ = ("action_name", "open", "span", "spans")

    def __init__(self, spans: _Spans, span: AbstractContextManager[Any], action_name: str) -> None:
        self.spans = spans
        self.span = span
        self.action_name = action_name
        self.open: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> Any:
        spans = self.spans
        context = spans.profile(self.action_name)
        self.open.append(context)
        was_entering, spans.is_entering = spans.is_entering, True
        try:
            with spans.profiling:
                entered = context.__enter__()
        except BaseException:
            self.open.pop()
            raise
        finally:
            spans.is_entering = was_entering
        try:
            self.span.__enter__()
        except BaseException:  # an interrupt: no ``with`` will exit this
            self.open.pop().__exit__(*sys.exc_info())
            raise
        return entered

    def __exit__(self, *exception: Any) -> Any:
        try:
            self.span.__exit__(*exception)
        except BaseException:  # an interrupt: the user's profiler ends its action all the same
            self._exit_profile(*sys.exc_info())
            raise
        return self._exit_profile(*exception)

    def _exit_profile(self, *exception: Any) -> Any:
        spans = self.spans
        was_entering, spans.is_entering = spans.is_entering, True
        try:
            with spans.profiling:
                return self.open.pop().__exit__(*exception)
        finally:
            spans.is_entering = was_entering
