"""Read memory at the same point of each step, and find the objects that grow when it does."""

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning_perf.records import Growth, Suspect
from lightning_perf.stats.leak import LEAK_BYTES_PER_STEP, MIN_READINGS, Trend, fit_trend

from .heap_diff import HeapDiff

WARMUP_STEPS = 8
"""Allocators and caches fill up in the first steps of any training."""

FIRST_STRIDE = 5
MAX_READINGS = 128
"""Readings kept; when there are more, every second one is dropped and the stride doubles."""

COST_NS_PER_STEP = 500
"""Average cost per step of readings; slower readings are made less often."""

FREE_READINGS = 40
"""The cost of this many first readings does not delay the next one, so that a leak is found within 200 steps."""

FREE_NS = 40 * 10**6
"""Time budget for the readings of one place, besides ``COST_NS_PER_STEP``; it grows to this over ``FREE_STEPS`` steps.

A place over its budget is skipped until later steps have made up for it. Reading the C heap takes from a microsecond
to tens of milliseconds; above 4 ms, the budget covers fewer than ``MIN_READINGS`` readings and a leak is found later.
"""

FREE_STEPS = 200

SLOW_READING_NS = 50_000
"""Faster readings count as overhead of their step."""

HEAP_DIFF_STEPS = 32
"""Steps between the two snapshots of a comparison of the heap."""

HEAP = "heap"
"""Name of the place for bytes in use on the C heap; resident memory without its free blocks is ``host``."""

WORKERS = "workers"
"""Name of the place for worker processes, whose memory a heap comparison cannot see."""

_MAX_HEAP_DIFFS = 2
_MAX_STRETCH = 64  # times the usual stride: the longest delay of a slow reading


class Readings:
    """Readings of one quantity over the steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[int] = []

    def add(self, step: int, value: int) -> bool:
        """Keep a reading; return whether the readings were thinned out."""
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) < MAX_READINGS:
            return False
        del self.steps[1::2], self.values[1::2]
        return True

    def clear(self) -> None:
        """Start over, e.g. because other processes are read from now on."""
        self.steps.clear()
        self.values.clear()

    def trend(self) -> tuple[Trend, int] | None:
        """Return the trend with its first reading: of all, or of the later half if only that grows steadily."""
        half = len(self.steps) // 2
        whole = fit_trend(self.steps, self.values)
        if whole is None or whole.is_steady or len(self.steps) - half < MIN_READINGS:
            return None if whole is None else (whole, 0)
        later = fit_trend(self.steps[half:], self.values[half:])
        return (later, half) if later is not None and is_growing(later) else (whole, 0)

    def may_be_growing(self) -> bool:
        """Return whether the last readings are above the first ones: a cheap test before fitting a trend."""
        n = len(self.steps) // 4
        if len(self.steps) < MIN_READINGS or n == 0:
            return False
        rise = (sum(self.values[-n:]) - sum(self.values[:n])) / n
        return rise >= 0.5 * LEAK_BYTES_PER_STEP * (self.steps[-1] - self.steps[0])


def is_growing(trend: Trend) -> bool:
    """Return whether memory grows steadily, fast enough to matter, and beyond noise."""
    return trend.is_steady and trend.low > 0 and trend.slope >= LEAK_BYTES_PER_STEP


class GrowthWatch:
    """Memory readings of several places, with a heap comparison once memory grows.

    ``readers`` return bytes by place, or None. ``roots`` returns the objects that a comparison starts from.
    ``call_excluded`` runs a slow function and excludes the current step from the statistics.
    """

    def __init__(
        self,
        readers: dict[str, Callable[[], int | None]],
        roots: Callable[[], dict[str, Any]],
        now_ns: Callable[[], int],
        call_excluded: Callable[[Callable[[], None]], None],
    ) -> None:
        self.readings = {place: Readings() for place in readers}
        self.next_step = WARMUP_STEPS
        self._readers = readers
        self._own_places = [place for place in readers if place != WORKERS]
        self._roots = roots
        self._now_ns = now_ns
        self._call_excluded = call_excluded
        self._stride = FIRST_STRIDE
        self._is_thinned = False
        self._n_observed = 0
        self._next_fit = MIN_READINGS
        self._spent_ns = dict.fromkeys(readers, 0)
        self.one_time_ns = 0
        """Time spent on slow readings within ``FREE_NS``: a one-time cost, not a cost per step."""
        self.held_graphs: tuple[Suspect, ...] = ()
        """Attributes that accumulate tensors with their graphs, whether or not memory grows."""
        self._heap_diff: HeapDiff | None = None
        self._attributes: HeapDiff | None = None
        self._has_snapshot_of_attributes = False
        self._own_bytes: dict[str, int] = {}
        self._n_heap_diffs = 0
        self._suspects: tuple[Suspect, ...] = ()
        self._heap_diff_text = ""

    def observe(self, step: int) -> None:
        """Read all places, and compare the heap if there is reason to. ``step`` is at least ``next_step``."""
        begin = self._now_ns()
        self._is_thinned = False
        free_ns = FREE_NS * min(1.0, step / FREE_STEPS)
        for place, spent_ns in list(self._spent_ns.items()):
            if spent_ns > free_ns + COST_NS_PER_STEP * step:
                continue
            self._read(place, step)
            taken_ns = self._spent_ns[place] - spent_ns
            if taken_ns >= SLOW_READING_NS and spent_ns <= free_ns:
                self.one_time_ns += taken_ns
        if self._is_thinned:
            self._stride *= 2
        self._n_observed += 1
        cost = (self._now_ns() - begin) // COST_NS_PER_STEP if self._n_observed > FREE_READINGS else 0
        self.next_step = step + max(self._stride, min(cost, _MAX_STRETCH * self._stride))
        self._follow_up(step)

    def _read(self, place: str, step: int) -> None:
        begin = self._now_ns()
        value = self._readers[place]()
        if value is not None:
            self._is_thinned |= self.readings[place].add(step, value - self._own_bytes.get(place, 0))
        self._spent_ns[place] += self._now_ns() - begin

    def end(self, step: int) -> None:
        """Take the second snapshots that are due at the end of the run."""
        for heap_diff in filter(None, (self._heap_diff, self._attributes)):
            if step - heap_diff.step >= MIN_READINGS:
                self._second_snapshot(heap_diff, step)

    def records(self) -> tuple[Growth, ...]:
        """Return the trends of places with enough readings."""
        found = ((place, readings, readings.trend()) for place, readings in self.readings.items())
        return tuple(self._record(place, readings, *fitted) for place, readings, fitted in found if fitted is not None)

    def _record(self, place: str, readings: Readings, trend: Trend, first: int) -> Growth:
        is_reported = place != WORKERS and is_growing(trend)
        return Growth(
            where=place,
            n=len(readings.steps) - first,
            first_step=readings.steps[first],
            last_step=readings.steps[-1],
            level_bytes=readings.values[-1],
            bytes_per_step=trend.slope,
            low_bytes_per_step=trend.low,
            high_bytes_per_step=trend.high,
            is_steady=trend.is_steady,
            suspects=self._suspects if is_reported else (),
            census=self._heap_diff_text if is_reported else "",
        )

    def _follow_up(self, step: int) -> None:
        if not self._has_snapshot_of_attributes:
            self._has_snapshot_of_attributes = True
            self._call_excluded(partial(self._snapshot_attributes, step))
        for heap_diff in filter(None, (self._heap_diff, self._attributes)):
            if step - heap_diff.step >= HEAP_DIFF_STEPS:
                self._call_excluded(partial(self._second_snapshot, heap_diff, step))
        may_compare = self._heap_diff is None and self._n_heap_diffs < _MAX_HEAP_DIFFS and not self._suspects
        if may_compare and self._may_be_growing():
            self._call_excluded(partial(self._first_snapshot_if_growing, step))

    def _snapshot_attributes(self, step: int) -> None:
        self._attributes = HeapDiff(self._roots(), step, is_wide=False)

    def _first_snapshot_if_growing(self, step: int) -> None:
        if not self._is_growing():
            return
        self._n_heap_diffs += 1
        before = {place: read() for place, read in self._readers.items()}
        self._heap_diff = HeapDiff(self._roots(), step)
        self._subtract_own(before)

    def _second_snapshot(self, heap_diff: HeapDiff, step: int) -> None:
        if heap_diff is self._attributes:  # small: allocates little, and reading the heap may be slow
            self._attributes = None
            found = heap_diff.grown(self._roots(), step)
            self.held_graphs = tuple(s for s in found if s.kind == "graph" or s.n_with_graph)
            return
        before = {place: read() for place, read in self._readers.items()}
        found = heap_diff.grown(self._roots(), step)
        self._heap_diff = None
        self._suspects = found
        part = "" if heap_diff.is_complete else "some of "
        self._heap_diff_text = (
            f"{part}the live Python objects were compared after steps {heap_diff.step} and {step}, "
            f"in {heap_diff.own_s * 1e3:.0f} ms"
        )
        self._subtract_own(before)

    def _subtract_own(self, before: dict[str, int | None]) -> None:
        """Subtract this probe's own allocations from later readings."""
        for place, read in self._readers.items():
            now, earlier = read(), before[place]
            if now is not None and earlier is not None:
                self._own_bytes[place] = self._own_bytes.get(place, 0) + now - earlier

    def _may_be_growing(self) -> bool:
        return self._n_observed >= self._next_fit and any(
            self.readings[place].may_be_growing() for place in self._own_places
        )

    def _is_growing(self) -> bool:
        # A fit takes as long as dozens of readings: wait for enough new ones.
        self._next_fit = self._n_observed + max(4, self._n_observed // 4)
        fitted = (self.readings[place].trend() for place in self._own_places)
        return any(is_growing(each[0]) for each in fitted if each is not None)
