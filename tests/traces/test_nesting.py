"""The call tree equals the one found by looking for the smallest enclosing event."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.traces.nesting import Nesting

US = 1000


def calls(sizes: list[int], start: int = 0) -> list[tuple[int, int]]:
    """Properly nested calls: each number opens a call that holds that many of the following ones."""
    events: list[tuple[int, int]] = []
    remaining = list(sizes)

    def one(now: int, depth: int) -> int:
        index = len(events)
        events.append((now, now))
        now += 2 * US
        for _ in range(remaining.pop(0) if remaining and depth < 6 else 0):
            if not remaining:
                break
            now = one(now, depth + 1)
        now += 2 * US
        events[index] = (events[index][0], now)
        return now + US

    while remaining:
        start = one(start, 0)
        remaining = remaining[1:] if remaining else remaining
    return events


@given(st.lists(st.integers(0, 3), min_size=1, max_size=25))
def test_parents_are_the_smallest_enclosing_calls(sizes: list[int]) -> None:
    events = calls(sizes)
    tree = Nesting([start for start, _ in events], [end for _, end in events])
    for i, (start, end) in enumerate(events):
        around = [j for j, (s, e) in enumerate(events) if j != i and s <= start and end <= e]
        expected = max(around, key=lambda j: events[j][0]) if around else -1
        assert tree.parents[i] == expected
    inside = [start + 1 for start, _ in events]
    assert tree.innermost(inside).tolist() == list(range(len(events)))
    assert tree.innermost([-1, max(end for _, end in events) + US]).tolist() == [-1, -1]
    values = np.arange(len(events)) + 1
    for i in range(len(events)):
        below = [j for j in range(len(events)) if j == i or _descends(tree, j, i)]
        assert tree.subtree_sum(values)[i] == sum(values[j] for j in below)


def _descends(tree: Nesting, event: int, ancestor: int) -> bool:
    while (event := int(tree.parents[event])) >= 0:
        if event == ancestor:
            return True
    return False


def test_rounding_keeps_a_child_with_its_caller_when_it_sticks_out_by_a_microsecond() -> None:
    assert Nesting([0, 3 * US, 5 * US], [5 * US, 6 * US, 9 * US]).parents.tolist() == [-1, 0, -1]


def test_crossing_events_are_siblings_when_neither_can_have_called_the_other() -> None:
    assert Nesting([0, 5 * US], [8 * US, 20 * US]).parents.tolist() == [-1, -1]


def test_events_without_duration_hold_nothing() -> None:
    tree = Nesting([0, 2, 2, 4], [10, 2, 2, 4])
    assert tree.parents.tolist() == [-1, 0, 0, 0]
    assert tree.innermost([3]).tolist() == [0]


spans = st.tuples(st.integers(0, 12 * US), st.one_of(st.integers(0, 3 * US), st.integers(0, 12 * US)))


@given(st.lists(spans, max_size=30))
def test_the_tree_is_that_of_a_stack_when_events_overlap_in_any_way(events: list[tuple[int, int]]) -> None:
    times = sorted(((start, start + length) for start, length in events), key=lambda span: (span[0], -span[1]))
    parents, last = [-1] * len(times), [len(times)] * len(times)
    stack: list[int] = []
    for i, (start, end) in enumerate(times):
        while stack and not (times[stack[-1]][1] > start and times[stack[-1]][1] >= end - US):
            last[stack.pop()] = i
        parents[i] = stack[-1] if stack else -1
        stack.append(i)
    tree = Nesting([start for start, _ in times], [end for _, end in times])
    assert tree.parents.tolist() == parents
    assert tree.last.tolist() == last
