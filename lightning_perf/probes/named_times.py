"""Sum the time of spans by name: callbacks, hooks of the module, loggers, parts of Lightning's loop."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning_perf.records import PHASES, NamedTime

from .spans import Span, Timeline

_MAX_NAMES = 32


class NamedTimes:
    """Time by name from ``begin`` on, without time that all statistics exclude.

    Sampled and profiled steps take longer, so they would distort the shares. ``spans`` may grow.
    """

    def __init__(self, timeline: Timeline, spans: list[Span]) -> None:
        self._timeline = timeline
        self._spans = spans
        self._uncounted: dict[int, tuple[int, int]] = {}  # by id of a span: nanoseconds and entries
        self._uncounted_ns = 0
        self._has_begun = self._is_left_out = False

    def begin(self) -> None:
        """Count from now on, unless time is left out."""
        self._timeline.charge()
        self._has_begun, self._uncounted, self._uncounted_ns = True, {}, 0
        self._add_to_uncounted(1)
        if self._is_left_out:
            self._add_to_uncounted(-1)

    def leave_out(self, is_on: bool) -> None:
        """Begin or end time that all statistics exclude."""
        self._timeline.charge()
        self._is_left_out = is_on
        self._add_to_uncounted(-1 if is_on else 1)

    def elapsed_ns(self) -> int:
        """Return the nanoseconds over which names are summed, without PerfDoctor's own; 0 before ``begin``."""
        if not self._has_begun:
            return 0
        with self._brought_up_to_date():
            own_ns = sum(self._counted(span)[0] for span in self._spans if span.kind == "self")
            return self._timeline.last_ns - self._uncounted_ns - own_ns

    def records(self) -> tuple[NamedTime, ...]:
        """Return the times, largest first, without PerfDoctor's own; none before ``begin``."""
        if not self._has_begun:
            return ()
        merged: dict[tuple[str, str, str, int], list[int]] = {}
        with self._brought_up_to_date():
            for span in self._spans:
                ns, n = self._counted(span)
                if span.kind != "self" and n > 0:
                    total = merged.setdefault((span.name, span.kind, span.hook, span.phase), [0, 0])
                    total[0] += ns
                    total[1] += n
            elapsed_ns = max(1, self.elapsed_ns())
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

    def _counted(self, span: Span) -> tuple[int, int]:
        ns, n = self._uncounted.get(id(span), (0, 0))
        return span.ns - ns, span.n - n

    @contextmanager
    def _brought_up_to_date(self) -> Iterator[None]:
        """Charge the time until now; where it is left out, end that for a moment."""
        self._timeline.charge()
        is_left_out, self._is_left_out = self._is_left_out, False
        if is_left_out:
            self._add_to_uncounted(1)
        yield
        if is_left_out:
            self._is_left_out = True
            self._add_to_uncounted(-1)

    def _add_to_uncounted(self, sign: int) -> None:
        for span in self._spans:
            ns, n = self._uncounted.get(id(span), (0, 0))
            self._uncounted[id(span)] = (ns + sign * span.ns, n + sign * span.n)
        self._uncounted_ns += sign * self._timeline.last_ns
