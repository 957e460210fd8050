"""Exact arithmetic on sets of time intervals, in whole nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SECOND: Final = 1_000_000_000
"""Nanoseconds."""


def _times(values: Any) -> Times:
    return np.asarray(values, dtype=np.int64)


class Intervals:
    """A set of moments: half-open intervals [start, end) in ns, sorted, disjoint, none empty or touching another.

    Everything is integer arithmetic, so lengths of disjoint parts add up to the length of the whole exactly.
    """

    __slots__ = ("_before", "ends", "starts")

    def __init__(self, starts: Any = (), ends: Any = ()) -> None:
        """Take intervals in any order, overlapping or not; empty ones are dropped."""
        lo, hi = _times(starts), _times(ends)
        keep = hi > lo
        if not keep.all():
            lo, hi = lo[keep], hi[keep]
        if len(lo) > 1:
            if (lo[1:] < lo[:-1]).any():
                order = np.argsort(lo, kind="stable")
                lo, hi = lo[order], hi[order]
            latest_ends = np.maximum.accumulate(hi)
            fresh = np.concatenate(([True], lo[1:] > latest_ends[:-1]))
            first = np.flatnonzero(fresh)
            lo = lo[first]
            hi = latest_ends[np.concatenate((first[1:], [len(fresh)])) - 1]
        self.starts: Times = lo
        self.ends: Times = hi
        self._before: Times | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def total_ns(self) -> int:
        """The length of the set."""
        return int((self.ends - self.starts).sum())

    def __or__(self, other: Intervals) -> Intervals:
        if not len(other):
            return self
        if not len(self):
            return other
        return Intervals(np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends)))

    def __and__(self, other: Intervals) -> Intervals:
        return self._combined(other, lambda a, b: a & b)

    def __sub__(self, other: Intervals) -> Intervals:
        return self._combined(other, lambda a, b: a & ~b)

    def _combined(self, other: Intervals, keep: Callable[[Mask, Mask], Mask]) -> Intervals:
        """Return the intervals between neighboring edges of both sets that ``keep`` selects."""
        edges = np.sort(np.concatenate((self.starts, self.ends, other.starts, other.ends)), kind="stable")
        if len(edges) < 2:
            return Intervals()
        edges = edges[np.concatenate(([True], edges[1:] > edges[:-1]))]
        wanted = keep(self.contains(edges[:-1]), other.contains(edges[:-1]))
        return Intervals(edges[:-1][wanted], edges[1:][wanted])

    def contains(self, moments: Any) -> Mask:
        """Return which of the moments are in the set."""
        at = _times(moments)
        if not len(self):
            return np.zeros(len(at), dtype=np.bool_)
        index = np.searchsorted(self.starts, at, side="right") - 1
        found: Mask = (index >= 0) & (at < self.ends[np.maximum(index, 0)])
        return found

    def clip(self, start: int, end: int) -> Intervals:
        """Return the part of the set inside [start, end)."""
        return Intervals(np.maximum(self.starts, start), np.minimum(self.ends, end))

    def covered(self, starts: Any, ends: Any) -> Times:
        """Return how many nanoseconds of each given interval are in the set; the intervals may overlap."""
        lo, hi = _times(starts), _times(ends)
        return np.where(hi > lo, self._length_before(hi) - self._length_before(lo), 0)

    def _length_before(self, moments: Times) -> Times:
        if not len(self):
            return np.zeros(len(moments), dtype=np.int64)
        if self._before is None:
            self._before = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = np.searchsorted(self.starts, moments, side="right")
        inside = np.maximum(index - 1, 0)
        # The interval that the moment lies in (or follows) counts up to the moment only.
        beyond: Times = np.where(index > 0, np.maximum(self.ends[inside] - moments, 0), 0)
        length: Times = self._before[index] - beyond
        return length
