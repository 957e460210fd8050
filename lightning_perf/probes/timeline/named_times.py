"""Sum the time of spans by name: callbacks, hooks of the module, loggers, parts of Lightning's loop."""

from __future__ import annotations

from typing import NamedTuple

from lightning_perf.records import PHASES, NamedTime

from .spans import Span, Timeline

_MAX_NAMES = 32


class NamedTimes:
    """Time by name from ``begin`` on, and its share of the time that statistics include.

    Sampled and profiled steps take longer, so they would distort the shares. ``spans`` may grow.
    """

    def __init__(self, timeline: Timeline, spans: list[Span]) -> None:
        self._timeline = timeline
        self._spans = spans
        self._first: _Sums | None = None
        self._excluded = _Sums(0, {})  # at ``begin``, plus the time left out since
        self._held: _Sums | None = None  # what was included when the time now left out began

    def begin(self) -> None:
        """Count from now on, unless time is left out."""
        now = self._now()
        is_left_out = self._held is not None
        self._first, self._excluded, self._held = now, now, _Sums(0, {}) if is_left_out else None

    def leave_out(self, is_on: bool) -> None:
        """Begin or end time that statistics exclude."""
        if is_on:
            self._held = self._included()
        elif self._held is not None:
            self._excluded, self._held = self._now().minus(self._held), None

    def included_ns(self) -> int:
        """Return the nanoseconds that shares refer to, without PerfDoctor's own; 0 before ``begin``."""
        if self._first is None:
            return 0
        included = self._included()
        return included.wall_ns - sum(included.of(span)[0] for span in self._spans if span.kind == "self")

    def records(self) -> tuple[NamedTime, ...]:
        """Return the times, largest first, without PerfDoctor's own; none before ``begin``."""
        if self._first is None:
            return ()
        since_first, included = self._now().minus(self._first), self._included()
        merged: dict[tuple[str, str, str, int], list[int]] = {}
        for span in self._spans:
            ns, n = since_first.of(span)
            if span.kind != "self" and n > 0:
                total = merged.setdefault((span.name, span.kind, span.hook, span.phase), [0, 0, 0])
                for place, value in enumerate((ns, n, included.of(span)[0])):
                    total[place] += value
        whole_ns = max(1, self.included_ns())
        times = [
            NamedTime(
                name=name,
                kind=kind,
                hook=hook,
                phase=PHASES[phase],
                total_s=ns / 1e9,
                share=included_ns / whole_ns,
                n_calls=n,
            )
            for (name, kind, hook, phase), (ns, n, included_ns) in merged.items()
        ]
        return tuple(sorted(times, key=lambda t: -t.total_s)[:_MAX_NAMES])

    def _now(self) -> _Sums:
        wall_ns = self._timeline.charge()
        return _Sums(wall_ns, {id(span): (span.ns, span.n) for span in self._spans})

    def _included(self) -> _Sums:
        return self._held if self._held is not None else self._now().minus(self._excluded)


class _Sums(NamedTuple):
    """Wall time, and by the id of each span its nanoseconds and entries."""

    wall_ns: int
    spans: dict[int, tuple[int, int]]

    def of(self, span: Span) -> tuple[int, int]:
        return self.spans.get(id(span), (0, 0))

    def minus(self, other: _Sums) -> _Sums:
        differences = {}
        for key, (ns, n) in self.spans.items():
            other_ns, other_n = other.spans.get(key, (0, 0))
            differences[key] = (ns - other_ns, n - other_n)
        return _Sums(self.wall_ns - other.wall_ns, differences)
