"""The knee of throughput against the batch size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reports.sessions import starved

from lightning_perf.trials.fastest_batch import MARGIN, TOLERANCE, BatchPoint, knee, next_size, points_of
from lightning_perf.trials.plan import choose
from trials.runs import run

GIB = 2**30


def measure(size: int, rate: Callable[[int], float], capacity: int | None, per_sample: int = GIB // 64) -> BatchPoint:
    """Return points of a simulated machine."""
    peak = GIB + size * per_sample
    if capacity is not None and peak > capacity:
        return BatchPoint(batch_size=size, samples_per_s=None)
    return BatchPoint(batch_size=size, samples_per_s=rate(size), peak_bytes=peak)


def search(
    rate: Callable[[int], float], capacity: int | None = None, start: int = 8, told: bool = True
) -> list[BatchPoint]:
    points = [measure(start, rate, capacity)]
    while (size := next_size(points, capacity if told else None)) is not None:
        assert size not in {point.batch_size for point in points}
        points.append(measure(size, rate, capacity))
        assert len(points) < 40
    return points


def saturating(half: float) -> Callable[[int], float]:
    """Return throughput that approaches 1,000 samples/s: a fixed cost per step plus one per sample."""
    return lambda size: 1000 * size / (size + half)


def test_knee_is_the_smallest_size_within_five_percent_of_the_best() -> None:
    rates = {8: 500.0, 16: 800.0, 32: 960.0, 64: 1000.0, 128: 1005.0}
    choice = knee([BatchPoint(batch_size=size, samples_per_s=rate) for size, rate in rates.items()])
    assert choice == 32


@pytest.mark.parametrize(("rate", "expected"), [(951.0, 32), (949.0, 64)])
def test_knee_respects_both_sides_of_its_tolerance(rate: float, expected: int) -> None:
    points = [BatchPoint(batch_size=32, samples_per_s=rate), BatchPoint(batch_size=64, samples_per_s=1000.0)]
    choice = knee(points)
    assert choice == expected


def test_largest_is_not_the_fastest_when_throughput_falls_again() -> None:
    rates = {32: 900.0, 64: 1000.0, 128: 700.0}
    choice = knee([BatchPoint(batch_size=size, samples_per_s=rate) for size, rate in rates.items()])
    assert choice == 64


def test_knee_is_unknown_when_nothing_ran() -> None:
    assert knee([]) is None
    assert knee([BatchPoint(batch_size=8, samples_per_s=None)]) is None
    assert next_size([BatchPoint(batch_size=8, samples_per_s=None)]) is None


def test_search_goes_on_when_one_of_several_runs_of_a_size_was_lost() -> None:
    assert next_size([BatchPoint(batch_size=8, samples_per_s=rate) for rate in (None, 1000.0)]) == 16


def test_median_counts_when_one_size_was_measured_several_times() -> None:
    larger = [BatchPoint(batch_size=8, samples_per_s=rate) for rate in (100.0, 900.0, 2000.0)]
    assert knee([BatchPoint(batch_size=4, samples_per_s=880.0), *larger]) == 4
    assert knee([BatchPoint(batch_size=4, samples_per_s=800.0), *larger]) == 8


def test_search_doubles_while_throughput_grows_and_stops_at_the_knee() -> None:
    points = search(saturating(64))
    sizes = [point.batch_size for point in points]
    assert sizes[:5] == [8, 16, 32, 64, 128]
    assert max(sizes) <= 2048
    chosen = next(point for point in points if point.batch_size == knee(points))
    assert (chosen.samples_per_s or 0) >= (1 - TOLERANCE) * max(p.samples_per_s or 0 for p in points)


def test_search_stops_at_once_when_a_larger_batch_is_not_faster() -> None:
    assert [p.batch_size for p in search(lambda _: 1000.0)] == [8, 16]


def test_search_never_exceeds_the_memory_when_the_capacity_is_known() -> None:
    capacity = 3 * GIB
    points = search(saturating(500), capacity)
    assert all(point.samples_per_s is not None for point in points)
    assert all((p.peak_bytes or 0) <= capacity * (1 - MARGIN) * 1.0001 or p.batch_size <= 16 for p in points)
    assert max(p.batch_size for p in points) > 64


def test_search_tries_smaller_sizes_when_one_runs_out_of_memory() -> None:
    points = search(saturating(500), capacity=3 * GIB, told=False)
    assert [p.batch_size for p in points if p.samples_per_s is None] == [256, 184]
    choice = knee(points)
    assert choice is not None
    assert choice < 256


def test_sizes_are_multiples_that_suit_kernels() -> None:
    sizes = [point.batch_size for point in search(saturating(500), 3 * GIB, start=24)]
    assert all(size % 8 == 0 for size in sizes)


@given(
    half=st.floats(1, 5000),
    falls=st.floats(0, 0.5),
    capacity=st.one_of(st.none(), st.integers(2 * GIB, 40 * GIB)),
    start=st.integers(1, 64),
    told=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_search_ends_near_the_best_of_what_fits(
    half: float, falls: float, capacity: int | None, start: int, told: bool
) -> None:
    def rate(size: int) -> float:
        return saturating(half)(size) * (1 - falls * min(1.0, size / 2000))

    points = search(rate, capacity, start, told)
    chosen = next(point for point in points if point.batch_size == knee(points))
    assert (chosen.samples_per_s or 0) >= (1 - TOLERANCE) * max(p.samples_per_s or 0 for p in points)
    assert len(points) <= 20


def test_search_tries_sizes_between_when_the_best_exceeds_both_neighbors() -> None:
    rates = {8: 500.0, 16: 1000.0, 32: 600.0}
    points = [BatchPoint(batch_size=size, samples_per_s=rate) for size, rate in rates.items()]
    assert next_size(points) == 24
    assert next_size([*points, BatchPoint(batch_size=24, samples_per_s=800.0)]) == 12


def test_search_goes_on_without_a_size_between_that_failed() -> None:
    rates = {8: 500.0, 16: 1000.0, 24: None, 32: 600.0}
    points = [BatchPoint(batch_size=size, samples_per_s=rate) for size, rate in rates.items()]
    assert next_size(points) == 12
    assert next_size([*points, BatchPoint(batch_size=12, samples_per_s=None)]) is None
    growing = {8: 500.0, 12: None, 16: 900.0}
    assert next_size([BatchPoint(batch_size=size, samples_per_s=rate) for size, rate in growing.items()]) == 32


def test_points_are_read_from_runs_as_multiples_of_the_batch_of_the_arm_below() -> None:
    below = run("a", 0.1, batches_per_step=2, peak_host_bytes=100)
    doubled = run("a+batch-size=x2", 0.1, batches_per_step=1, peak_device_bytes=200, peak_host_bytes=9)
    failed = run("a+batch-size=x4", status="failed", reason="out of memory", block_means_s=())
    others = [run("baseline"), run("batch-size=x2"), run("a+b+batch-size=x2")]
    assert points_of([below, doubled, failed, *others], "a") == (
        BatchPoint(batch_size=1, samples_per_s=pytest.approx(20, rel=0.01), peak_bytes=100),
        BatchPoint(batch_size=2, samples_per_s=pytest.approx(20, rel=0.01), peak_bytes=200),
        BatchPoint(batch_size=4, samples_per_s=None),
    )
    assert [p.batch_size for p in points_of(others, "baseline")] == [1, 2]


def test_throughput_is_that_of_the_samples_when_batches_exceed_the_dataset() -> None:
    whole = run("baseline", 0.1, samples_per_step=32.0)
    cut = run("batch-size=x8", 0.1, samples_per_step=100.0)
    rates = [point.samples_per_s for point in points_of([whole, cut], "baseline")]
    assert rates == [pytest.approx(320, rel=0.01), pytest.approx(1000, rel=0.01)]


@pytest.mark.parametrize(("tries", "finds_batch", "candidates"), [
    ("batch-size", True, []),
    ("log-every-n=50,batch-size", True, ["log-every-n=50"]),
    ("batch-size=64", False, ["batch-size=64"]),
    ("batch-size=x2", False, ["batch-size=x2"]),
])  # fmt: skip
def test_fastest_batch_is_searched_when_batch_size_has_no_value(
    tries: str, finds_batch: bool, candidates: list[str]
) -> None:
    choice = choose(starved(), tries.split(","), semantics=False)
    assert choice.finds_batch is finds_batch
    assert [candidate.treatment for candidate in choice.candidates] == candidates
