"""The call tree of one thread: which event called which, and which was innermost at a moment."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .intervals import Times

Rows = npt.NDArray[np.int64]

ROUNDING_NS = 1_000
"""Time by which an event may end after its caller: older traces give times in whole microseconds."""


class Nesting:
    """The call tree of events on one thread, given in order of their starts (the longer one first where equal).

    Attributes:
        parents: For each event the index of its caller, -1 without one.
        last: For each event the index after its last descendant (events are in calling order).
    """

    __slots__ = ("_moments", "_tops", "last", "parents")

    def __init__(self, starts: Any, ends: Any) -> None:
        """Build the tree; an event that ends more than ``ROUNDING_NS`` after another one was not called by it."""
        begin: Times = np.asarray(starts, dtype=np.int64)
        finish: Times = np.asarray(ends, dtype=np.int64)
        self.parents: Rows = _latest_reaching(finish, np.maximum(begin + 1, finish - ROUNDING_NS))
        self.last: Rows = np.arange(len(begin)) + _tree_sizes(self.parents)
        self._moments, self._tops = _changes(begin, finish, self.parents, self.last)

    def innermost(self, moments: Any) -> Rows:
        """Return the index of the innermost event at each moment, -1 for none."""
        at = np.asarray(moments, dtype=np.int64)
        if not len(self._moments):
            return np.full(len(at), -1, dtype=np.int64)
        index = np.searchsorted(self._moments, at, side="right") - 1
        found: Rows = np.where(index >= 0, self._tops[np.maximum(index, 0)], -1)
        return found

    def subtree_sum(self, values: Any) -> Any:
        """Return the sum of ``values`` over each event and all events that it called, directly or not."""
        before = np.concatenate(([0], np.cumsum(values)))
        return before[self.last] - before[np.arange(len(self.last))]


def _latest_reaching(ends: Times, thresholds: Times) -> Rows:
    """Return the latest event before each event that ends at its threshold or later; -1 for none.

    That is its caller, because events in between that ended earlier have returned. It is found by bisection for all
    events at once: for blocks of 1, 2, 4 … events the latest end is known; going back, the first block that ends late
    enough contains the caller.
    """
    n = len(ends)
    latest_ends = [ends]
    while len(latest_ends[-1]) > 1:
        below = latest_ends[-1]
        below = below if len(below) % 2 == 0 else np.append(below, np.iinfo(np.int64).min)
        latest_ends.append(np.maximum(below[::2], below[1::2]))
    found = np.full(n, -1, dtype=np.int64)
    found_by_level: list[tuple[Rows, Rows]] = []
    searching, before = np.arange(n), np.arange(n)  # ``before``: number of blocks of this level before the event
    for level_ends in latest_ends:
        aside = np.flatnonzero(before & 1)  # with an odd number, the last block is not part of a larger one before it
        block = before[aside] - 1
        reaches = level_ends[block] >= thresholds[searching[aside]]
        found_by_level.append((searching[aside[reaches]], block[reaches]))
        going_on = before > 1
        going_on[aside[reaches]] = False
        searching, before = searching[going_on], before[going_on] >> 1
    queries = blocks = np.empty(0, dtype=np.int64)
    for level_ends, (more, their_blocks) in zip(reversed(latest_ends), reversed(found_by_level), strict=True):
        # Go from a block to its later half if that ends late enough, else to its earlier half.
        halves = np.minimum(2 * blocks + 1, len(level_ends) - 1)
        later = (halves == 2 * blocks + 1) & (level_ends[halves] >= thresholds[queries])
        blocks = np.concatenate((2 * blocks + later, their_blocks))
        queries = np.concatenate((queries, more))
    found[queries] = blocks
    return found


def _tree_sizes(parents: Rows) -> Rows:
    """Return the number of events in each event's subtree, itself included."""
    depths = (parents >= 0).astype(np.int64)
    ancestors = parents.copy()
    rising = np.flatnonzero(ancestors >= 0)
    while len(rising):  # each pass doubles the distance: the caller, its caller, four callers up, …
        depths[rising] += depths[ancestors[rising]]
        ancestors[rising] = ancestors[ancestors[rising]]
        rising = rising[ancestors[rising] >= 0]
    sizes = np.ones(len(parents), dtype=np.int64)
    deepest_first = np.argsort(-depths, kind="stable")
    borders = np.flatnonzero(np.diff(depths[deepest_first])) + 1
    for level in np.split(deepest_first, borders)[:-1]:
        np.add.at(sizes, parents[level], sizes[level])
    return sizes


def _changes(starts: Times, ends: Times, parents: Rows, last: Rows) -> tuple[Times, Rows]:
    """Return when the innermost event changes, and to which: each event at its start, its caller at its end."""
    n = len(starts)
    closing = n - 1 - np.argsort(last[::-1], kind="stable")  # in this order; the innermost first
    following = np.append(starts, np.iinfo(np.int64).max)[last[closing]]
    moments = np.empty(2 * n, dtype=np.int64)
    tops = np.empty(2 * n, dtype=np.int64)
    # Event i comes after i starts, and after the ends of events whose calls all come before it.
    begins = np.arange(n) + np.searchsorted(last[closing], np.arange(n), side="right")
    is_begin = np.zeros(2 * n, dtype=np.bool_)
    is_begin[begins] = True
    moments[is_begin], tops[is_begin] = starts, np.arange(n)
    moments[~is_begin], tops[~is_begin] = np.minimum(ends[closing], following), parents[closing]
    # A caller cut short by rounding may close after its successor began; moments must not run backwards.
    return np.maximum.accumulate(moments), tops
