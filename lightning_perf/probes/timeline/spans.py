"""Attribute host time to the parts of the training loop, without gap or overlap.

Exactly one span is current. Entering a span charges the time since the last change to the previous span, and leaving it
charges the span itself. So times are exclusive and add up to wall time however spans nest, and each change costs one
clock read.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.records import PHASES

N_PHASES = len(PHASES)
PHASE_INDEX = {name: index for index, name in enumerate(PHASES)}

OWN = N_PHASES
"""Column of PerfDoctor's own time in its hooks, after the phases; rows also count it as callbacks."""

N_COLUMNS = N_PHASES + 1


class Span:
    """A named part of the loop, as a reusable context manager that yields the name of Lightning's action.

    ``ns`` counts the time in it without the spans entered from it, ``n`` its entries.
    """

    __slots__ = ("action", "hook", "kind", "n", "name", "ns", "phase", "timeline")

    def __init__(self, timeline: "Timeline", phase: str, name: str = "", kind: str = "loop", hook: str = "") -> None:
        self.timeline = timeline
        self.action: str | None = None
        self.phase = OWN if kind == "self" else PHASE_INDEX[phase]
        self.name = name
        self.kind = kind
        self.hook = hook
        self.ns = 0
        self.n = 0

    def __enter__(self) -> str | None:
        timeline = self.timeline
        try:
            now = timeline.now_ns()
            current = timeline.current
            passed = now - timeline.last_ns
            current.ns += passed
            timeline.phase_ns[current.phase] += passed
            timeline.last_ns = now
            timeline.stack.append(current)
            timeline.current = self
            self.n += 1
        except Exception as error:  # noqa: BLE001 - reported; a broken clock must not break the training
            timeline.fail(error)
        return self.action

    def __exit__(self, *exception: object) -> None:
        timeline = self.timeline
        try:
            now = timeline.now_ns()
            passed = now - timeline.last_ns
            current = timeline.current
            current.ns += passed
            timeline.phase_ns[current.phase] += passed
            timeline.last_ns = now
            # Empty after ``unwind``: this span was given up before it ended.
            timeline.current = timeline.stack.pop() if timeline.stack else timeline.base
        except Exception as error:  # noqa: BLE001 - as above
            timeline.fail(error)


class PhaseListener(Protocol):
    """Listener for the parts of a step."""

    def enters(self, name: str) -> None:
        """Handle the start of a part."""

    def leaves(self, name: str) -> None:
        """Handle the end of a part, even if it raised."""


class ListenedSpan(Span):
    """A span that notifies ``timeline.phase_listener`` when it begins and ends.

    Spans get this class for a sampled step only, so that other steps pay nothing.
    """

    __slots__ = ()

    def __enter__(self) -> str | None:
        Span.__enter__(self)
        _notify(self, "enters")
        return self.action

    def __exit__(self, *exception: object) -> None:
        _notify(self, "leaves")
        Span.__exit__(self, *exception)


def _notify(span: Span, event: str) -> None:
    # No method of ListenedSpan: a span that is under way may be a plain one again when it ends.
    if span.timeline.phase_listener is not None:
        try:
            getattr(span.timeline.phase_listener, event)(span.name)
        except Exception as error:  # noqa: BLE001 - reported
            span.timeline.fail(error)


class FetchSpan(Span):
    """The wait for a batch. Calls ``before``, and ``after`` if ``before`` returned True."""

    __slots__ = ("after", "before", "wants_end")

    def __init__(self, timeline: "Timeline", before: Callable[[], bool], after: Callable[[], None]) -> None:
        super().__init__(timeline, "data_wait", "train_dataloader", "loop", "next")
        self.before = before
        self.after = after
        self.wants_end = False

    def __enter__(self) -> str | None:
        try:
            self.wants_end = self.before()
        except Exception as error:  # noqa: BLE001 - reported
            self.timeline.fail(error)
        return Span.__enter__(self)

    def __exit__(self, *exception: object) -> None:
        Span.__exit__(self)
        if self.wants_end:
            try:
                self.after()
            except Exception as error:  # noqa: BLE001 - reported
                self.timeline.fail(error)


class NullSpan(str):
    """The name of an action without a span, as a context manager that yields it and does nothing.

    A step enters about a dozen. Functions written in C cost half of what empty Python functions do: one that returns
    the string, and one that accepts any arguments and returns a false value.
    """

    __slots__ = ()

    __enter__ = str.__str__
    __exit__ = staticmethod("".format)


class MarkedSpan:
    """A span that also marks the trace of a profiler window, with a context manager from ``mark``."""

    __slots__ = ("mark", "open", "span")

    def __init__(self, span: Span, mark: Callable[[], Any]) -> None:
        self.span = span
        self.mark = mark
        self.open: list[Any] = []

    def __enter__(self) -> str | None:
        self.span.__enter__()
        try:
            context = self.mark()
            context.__enter__()
            self.open.append(context)
        except Exception as error:  # noqa: BLE001 - reported; marking must not break the training
            self.span.timeline.fail(error)
        return self.span.action

    def __exit__(self, *exception: object) -> None:
        try:
            if self.open:
                self.open.pop().__exit__(*exception)
        except Exception as error:  # noqa: BLE001 - reported, as above
            self.span.timeline.fail(error)
        self.span.__exit__(*exception)


def phase_of(span: Span) -> str:
    """Return the phase of a span; PerfDoctor's own time counts as callbacks."""
    return "callbacks" if span.phase == OWN else PHASES[span.phase]


class Timeline:
    """The current span, and the time of each phase since the last row was taken.

    ``on_fail`` gets the first error inside a span; spans then measure nothing useful.
    """

    def __init__(self, now_ns: Callable[[], int], on_fail: Callable[[Exception], None]) -> None:
        self.now_ns = now_ns
        self.on_fail = on_fail
        self.has_failed = False
        self.is_frozen = False
        self.phase_listener: PhaseListener | None = None
        self.phase_ns = [0] * N_COLUMNS
        self.stack: list[Span] = []
        self.base = Span(self, "startup", "base")
        self.current: Span = self.base
        self.last_ns = now_ns()
        self.start_ns = self.last_ns

    def phase(self) -> str:
        return phase_of(self.current)

    def charge(self) -> int:
        """Charge the time since the last change to the current span; return the time in nanoseconds."""
        now = self.now_ns()
        passed = now - self.last_ns
        self.current.ns += passed
        self.phase_ns[self.current.phase] += passed
        self.last_ns = now
        return now

    def set_base(self, phase: str) -> None:
        """Charge the time outside all spans to ``phase`` from now on."""
        self.charge()
        self.base.phase = PHASE_INDEX[phase]

    def unwind(self) -> None:
        """Drop spans that were never left, because the user caught an exception."""
        self.charge()
        self.stack.clear()
        self.current = self.base

    def freeze(self) -> None:
        """Stop the clock for good."""
        last_ns = self.last_ns
        self.now_ns = lambda: last_ns
        self.is_frozen = True

    def swap_counters(self, phase_ns: list[int]) -> list[int]:
        """Count phases in ``phase_ns`` from now on; return the previous counters. For stages inside a stage."""
        self.charge()
        used, self.phase_ns = self.phase_ns, phase_ns
        return used

    def fail(self, error: Exception) -> None:
        """Report the first error, unless a signal handler raised it: such an error goes on into the training."""
        raise_if_from_signal(error)
        if not self.has_failed:
            self.has_failed = True
            self.on_fail(error)


def span_cost_ns(now_ns: Callable[[], int], rounds: int = 200) -> float:
    """Return nanoseconds to enter and leave a span: the lowest mean of five rounds."""
    span = Span(Timeline(now_ns, lambda _: None), "other")
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            with span:
                pass
        best = min(best, (time.perf_counter_ns() - start) / rounds)
    return best
