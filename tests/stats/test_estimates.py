"""Intervals of steps and ratios from a few runs."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from lightning_perf.stats.estimates import MIN_RUNS_FOR_DRIFT, ratio_interval, step_interval

LEVELS = st.lists(st.floats(1e-4, 1e3), min_size=2, max_size=6)


def runs(levels: list[float]) -> list[list[float]]:
    """Runs of three blocks whose median is the level."""
    return [[level, 0.9 * level, 1.2 * level] for level in levels]


@given(LEVELS, LEVELS)
def test_ratio_interval_is_welch_s_of_scipy_on_the_logarithms(a: list[float], b: list[float]) -> None:
    assume(len(set(a)) > 1 or len(set(b)) > 1)
    reference = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    assume(math.isfinite(reference.statistic))
    expected, center = reference.confidence_interval(), np.log(a).mean() - np.log(b).mean()
    found = ratio_interval(runs(a), runs(b))
    assert math.log(found.low) == pytest.approx(max(expected.low, center - 15), rel=1e-6, abs=1e-9)
    assert math.log(found.high) == pytest.approx(min(expected.high, center + 15), rel=1e-6, abs=1e-9)


@given(LEVELS)
def test_step_interval_is_student_s_of_scipy_on_the_logarithms(a: list[float]) -> None:
    assume(max(a) > (1 + 1e-6) * min(a))
    logs = np.log(a)
    expected = stats.t.interval(0.95, len(a) - 1, loc=logs.mean(), scale=stats.sem(logs))
    found = step_interval(runs(a))
    assert math.log(found.low) == pytest.approx(max(expected[0], logs.mean() - 15), rel=1e-6, abs=1e-9)
    assert math.log(found.value) == pytest.approx(logs.mean(), abs=1e-9)


@given(LEVELS, LEVELS, st.floats(0.01, 100))
def test_ratio_does_not_depend_on_the_unit_and_inverts_with_the_arms(a: list[float], b: list[float], k: float) -> None:
    one = ratio_interval(runs(a), runs(b))
    scaled = ratio_interval(runs([k * x for x in a]), runs([k * x for x in b]))
    swapped = ratio_interval(runs(b), runs(a))
    assert math.log(scaled.low) == pytest.approx(math.log(one.low), rel=1e-6, abs=1e-6)
    assert math.log(swapped.low) == pytest.approx(-math.log(one.high), rel=1e-6, abs=1e-6)
    assert one.low <= one.value <= one.high


def test_ratio_is_exact_when_runs_do_not_vary() -> None:
    found = ratio_interval(runs([0.03] * 3), runs([0.02] * 3))
    assert (found.low, found.value, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_level_of_a_run_is_its_median_block_so_one_disturbed_block_moves_nothing() -> None:
    disturbed = [[0.02, 0.02, 9.0], [0.02, 0.02, 0.02]]
    assert ratio_interval(runs([0.03] * 2), disturbed).value == pytest.approx(1.5)


def test_there_is_no_interval_when_an_arm_ran_once() -> None:
    assert ratio_interval(runs([0.03]), runs([0.02, 0.02])) is None
    assert ratio_interval(runs([0.03, 0.03]), runs([0.02])) is None
    assert step_interval(runs([0.03])) is None


def mirrored(drift: float, repeats: int) -> tuple[list[float], list[float], list[int], list[int]]:
    """Levels and places of A A B | B A A | … on a machine that slows down by ``drift`` a run; B takes two thirds."""
    order = [arm for i in range(repeats) for arm in ("aab" if i % 2 == 0 else "baa")]
    levels = [(0.03 if arm == "a" else 0.02) * math.exp(drift * place) for place, arm in enumerate(order)]
    places = {arm: [i for i, one in enumerate(order) if one == arm] for arm in "ab"}
    return [levels[i] for i in places["a"]], [levels[i] for i in places["b"]], places["a"], places["b"]


@pytest.mark.parametrize("repeats", [2, 3, 4])
def test_drift_is_taken_out_when_the_order_is_known(repeats: int) -> None:
    a, b, a_at, b_at = mirrored(0.01, repeats)
    assert len(a) + len(b) >= MIN_RUNS_FOR_DRIFT
    found = ratio_interval(runs(a), runs(b), a_at, b_at)
    assert (found.low, found.value, found.high) == pytest.approx((1.5, 1.5, 1.5), rel=1e-9)
    left_in = ratio_interval(runs(a), runs(b))
    assert left_in.high - left_in.low > 0.01


def test_drift_is_left_in_when_four_runs_are_too_few_to_see_it() -> None:
    a, b = [0.030, 0.0303], [0.0203, 0.0206]
    assert ratio_interval(runs(a), runs(b), [0, 3], [1, 2]) == ratio_interval(runs(a), runs(b))


def test_interval_can_be_saved_when_two_runs_differ_by_orders_of_magnitude() -> None:
    found = ratio_interval(runs([1e-3, 1e3]), runs([1e-3, 1e3]))
    assert 0 < found.low < found.high < 1e9


def test_the_degree_of_freedom_that_the_drift_costs_is_cut() -> None:
    a, b = [0.01, -0.01, -0.01, 0.01], [0.02, -0.02, -0.02, 0.02]  # neither has a slope at these places
    places = [0, 1, 4, 5], [2, 3, 6, 7]
    found = ratio_interval(runs(np.exp(a).tolist()), runs(np.exp(b).tolist()), *places)
    kept = 5 / 6
    parts = np.var(a, ddof=1) / kept / 4, np.var(b, ddof=1) / kept / 4
    df = kept * sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 3)
    assert math.log(found.high) == pytest.approx(stats.t.ppf(0.975, df) * math.sqrt(sum(parts)))
