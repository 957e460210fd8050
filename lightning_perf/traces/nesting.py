"""Which event called which, and what was innermost at a moment: the call tree of one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .intervals import Times

Rows = npt.NDArray[np.int64]

ROUNDING_NS = 1_000
"""An event may stick out of its caller by this much: older traces give times in whole microseconds."""


class Nesting:
    """The call tree of events on one thread, given in order of their starts (the longer one first where equal).

    Attributes:
        parents: For each event the index of its caller, -1 for one called by nobody.
        last: For each event the index after its last descendant (events are in calling order).
    """

    __slots__ = ("_moments", "_tops", "last", "parents")

    def __init__(self, starts: Any, ends: Any) -> None:
        """Builds the tree.

        An event that sticks out of its caller by more than ``ROUNDING_NS`` was not called by it: then the caller's
        caller is tried.
        """
        begin: list[int] = np.asarray(starts).tolist()
        finish: list[int] = np.asarray(ends).tolist()
        n = len(begin)
        parents = [-1] * n
        last = [n] * n
        moments: list[int] = []
        tops: list[int] = []
        stack: list[int] = []
        for i in range(n):
            start = begin[i]
            latest = finish[i] - ROUNDING_NS
            while stack:
                top = stack[-1]
                end = finish[top]
                if end > start and end >= latest:
                    parents[i] = top
                    break
                stack.pop()
                last[top] = i
                moments.append(end if end < start else start)
                tops.append(stack[-1] if stack else -1)
            stack.append(i)
            moments.append(start)
            tops.append(i)
        while stack:
            top = stack.pop()
            moments.append(finish[top])
            tops.append(stack[-1] if stack else -1)
        self.parents: Rows = np.array(parents, dtype=np.int64)
        self.last: Rows = np.array(last, dtype=np.int64)
        # A caller cut short by rounding may close after its successor began; moments must not run backwards.
        self._moments: Times = np.maximum.accumulate(np.array(moments, dtype=np.int64))
        self._tops: Rows = np.array(tops, dtype=np.int64)

    def innermost(self, moments: Any) -> Rows:
        """For each moment the index of the innermost event running then, -1 for none."""
        at = np.asarray(moments, dtype=np.int64)
        if not len(self._moments):
            return np.full(len(at), -1, dtype=np.int64)
        index = np.searchsorted(self._moments, at, side="right") - 1
        found: Rows = np.where(index >= 0, self._tops[np.maximum(index, 0)], -1)
        return found

    def subtree_sum(self, values: Any) -> Any:
        """For each event the sum of ``values`` over itself and all that it called, directly or not."""
        before = np.concatenate(([0], np.cumsum(values)))
        return before[self.last] - before[np.arange(len(self.last))]
