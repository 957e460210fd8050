"""The profiler seam: every action of the loops enters the span that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from .actions import base_class
from .undo import Undo

SpanFor = Callable[[str], AbstractContextManager[None]]
"""The span for an action that Lightning's loops announce to the profiler."""


def tap_profiler(trainer: Any, span_for: SpanFor) -> Undo | None:
    """Puts a delegating profiler in front of the user's, so that each action enters the span that belongs to it.

    Lightning's loops wrap every hook in ``trainer.profiler.profile(name)``. Where the user has no profiler, the tap
    answers with the span itself instead of the generator that Lightning's pass-through profiler makes each time:
    measuring costs less than what it replaces. A user's own profiler sees all it saw before.

    Args:
        trainer: The Trainer.
        span_for: Called once for each action's name.

    Returns:
        The undo; None when this Trainer has no profiler that can be tapped.
    """
    inner = getattr(trainer, "profiler", None)
    base = base_class(type(inner), ("Profiler",))
    if inner is None or base is None:
        return None
    tap = _tap_class(base)(inner, span_for)
    trainer.profiler = tap

    def undo() -> None:
        tap.release()
        if trainer.profiler is tap:
            trainer.profiler = inner

    return undo


@cache
def _tap_class(base: type) -> Any:
    """The delegating profiler, derived from the ``Profiler`` of whichever namespace the Trainer is from."""

    class ProfilerTap(base):  # type: ignore[misc]
        """Stands in for ``trainer.profiler``; whatever is not measured here is asked of the inner profiler."""

        def __init__(self, inner: Any, span_for: SpanFor) -> None:
            # Not super().__init__(): all state is the inner profiler's.
            spans = _Spans(inner, span_for)
            own: dict[str, Any] = {"_inner": inner, "_spans": spans, "profile": spans.__getitem__}
            if spans.is_inner_silent:  # without the way over ``self``, at each step
                own |= {"start": spans.start, "stop": spans.stop}
            self.__dict__.update(own)

        def start(self, action_name: str) -> None:
            self._inner.start(action_name)
            self._spans.start(action_name)

        def stop(self, action_name: str) -> None:
            self._spans.stop(action_name)
            self._inner.stop(action_name)

        def release(self) -> None:
            """From now on only the inner profiler is asked, should anyone have kept this one."""
            inner = self._inner
            self.__dict__.update(profile=inner.profile, start=inner.start, stop=inner.stop)

        def setup(self, *args: Any, **kwargs: Any) -> None:
            self._inner.setup(*args, **kwargs)

        def teardown(self, *args: Any, **kwargs: Any) -> None:
            self._inner.teardown(*args, **kwargs)

        def describe(self) -> None:
            self._inner.describe()

        def summary(self) -> str:
            return str(self._inner.summary())

        def __getattr__(self, name: str) -> Any:
            inner = self.__dict__.get("_inner")
            if inner is None:  # while a copy is being made
                raise AttributeError(name)
            return getattr(inner, name)

        def __reduce__(self) -> Any:
            """Copies and pickles as the user's profiler: loaders that spawn workers may take the Trainer along."""
            return _as_is, (self.__dict__["_inner"],)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._inner, name, value)

        def __del__(self) -> None:
            """The inner profiler's own ``__del__`` tears it down when its time has come."""

    return ProfilerTap


def _as_is(inner: Any) -> Any:
    return inner


class _Spans(dict[str, "AbstractContextManager[Any]"]):
    """Action name → what to enter for it. Looking up is all that ``profile`` does after the first time."""

    def __init__(self, inner: Any, span_for: SpanFor) -> None:
        super().__init__()
        self.inner = inner
        self.is_inner_silent = type(inner).__name__ == "PassThroughProfiler"
        self.own = _Own(span_for)
        """The span alone, for actions that are started and stopped by hand."""

    def start(self, action_name: str) -> None:
        """An action that is started by hand begins."""
        self.own[action_name].__enter__()

    def stop(self, action_name: str) -> None:
        """It is over."""
        self.own[action_name].__exit__(None, None, None)

    def __missing__(self, action_name: str) -> AbstractContextManager[Any]:
        span = self.own[action_name]
        context = span if self.is_inner_silent else _SpanAndProfile(span, self.inner, action_name)
        self[action_name] = context
        return context


class _Own(dict[str, "AbstractContextManager[None]"]):
    """Action name → its span."""

    def __init__(self, span_for: SpanFor) -> None:
        super().__init__()
        self._span_for = span_for

    def __missing__(self, action_name: str) -> AbstractContextManager[None]:
        span = self[action_name] = self._span_for(action_name)
        return span


class _SpanAndProfile:
    """Enters the user's profiler, then the span; reused for every call, since it keeps its open contexts on a stack."""

    __slots__ = ("action_name", "inner", "open", "outer")

    def __init__(self, span: AbstractContextManager[None], inner: Any, action_name: str) -> None:
        self.outer = span
        self.inner = inner
        self.action_name = action_name
        self.open: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> Any:
        context = self.inner.profile(self.action_name)
        entered = context.__enter__()
        self.open.append(context)
        self.outer.__enter__()
        return entered

    def __exit__(self, *exception: Any) -> Any:
        self.outer.__exit__(*exception)
        return self.open.pop().__exit__(*exception)
