"""Interval arithmetic equals counting moments one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.traces.intervals import Intervals

SPAN = 60
edges = st.integers(0, SPAN)
pairs = st.lists(st.tuples(edges, edges), max_size=12)


def moments(given_pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in given_pairs for moment in range(start, end)}


def make(given_pairs: list[tuple[int, int]]) -> Intervals:
    return Intervals([start for start, _ in given_pairs], [end for _, end in given_pairs])


def members(intervals: Intervals) -> set[int]:
    return moments(list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)))


@given(pairs)
def test_intervals_are_normal_when_made_from_any_pairs(first: list[tuple[int, int]]) -> None:
    made = make(first)
    assert members(made) == moments(first)
    assert made.total_ns == len(moments(first))
    assert (made.ends > made.starts).all()
    assert (made.starts[1:] > made.ends[:-1]).all()


@given(pairs, pairs)
def test_set_operations_equal_sets_of_moments(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    a, b = make(first), make(second)
    assert members(a | b) == moments(first) | moments(second)
    assert members(a & b) == moments(first) & moments(second)
    assert members(a - b) == moments(first) - moments(second)
    assert members((a & b) | (a - b)) == members(a)
    for made in (a | b, a & b, a - b):
        assert (made.starts[1:] > made.ends[:-1]).all()


@given(pairs, edges, edges)
def test_clip_keeps_the_part_inside_a_window(first: list[tuple[int, int]], one: int, other: int) -> None:
    start, end = min(one, other), max(one, other)
    made, window = make(first), set(range(start, end))
    assert members(made.clip(start, end)) == moments(first) & window


@given(pairs, pairs)
def test_covered_counts_moments_of_each_query(first: list[tuple[int, int]], queries: list[tuple[int, int]]) -> None:
    covered = make(first).covered([start for start, _ in queries], [end for _, end in queries])
    assert covered.tolist() == [len(moments(first) & set(range(*query))) for query in queries]


@given(pairs, st.lists(edges, max_size=10))
def test_contains_takes_single_moments(first: list[tuple[int, int]], queries: list[int]) -> None:
    assert make(first).contains(queries).tolist() == [moment in moments(first) for moment in queries]


def test_lengths_stay_exact_when_times_need_all_of_62_bits() -> None:
    base = 2**61
    made = Intervals([base, base + 7], [base + 3, base + 8])
    assert made.total_ns == 4
    assert made.covered([base - 1], [base + 2]).tolist() == [2]
    assert make([]).total_ns == 0
    assert np.array_equal(make([]).covered([1], [5]), [0])
