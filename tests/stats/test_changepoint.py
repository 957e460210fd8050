"""Finding one change of level in a series."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.stats.changepoint import find_change


def _noise(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 0.02, n)


@pytest.mark.parametrize("at", [15, 30, 45])
def test_change_is_found_where_it_was_planted_when_the_level_rises(at):
    series = 1.0 + _noise(60, at)
    series[at:] += 0.3
    change = find_change(series)
    assert abs(change.index - at) <= 1
    assert change.before == pytest.approx(1.0, abs=0.03)
    assert change.after == pytest.approx(1.3, abs=0.03)


def test_change_is_found_with_the_lower_level_after_when_the_level_falls():
    change = find_change([2.0] * 20 + [1.0] * 20)
    assert (change.index, change.before, change.after) == (20, 2.0, 1.0)


def test_a_slow_rise_is_found_as_one_step_in_its_middle():
    change = find_change(1.0 + 0.01 * np.arange(60) + _noise(60, 5))
    assert change.index == pytest.approx(30, abs=2)
    assert change.after - change.before == pytest.approx(0.3, abs=0.03)


def test_change_is_rarely_found_when_there_is_only_noise():
    assert sum(find_change(1.0 + _noise(60, seed)) is not None for seed in range(300)) == 0


def test_change_is_not_found_when_single_steps_are_outliers():
    series = 1.0 + _noise(60, 3)
    series[[20, 40, 55]] = 30.0
    assert find_change(series) is None


def test_change_is_not_found_when_the_levels_differ_less_than_the_noise():
    series = 1.0 + 50 * _noise(200, 4)
    series[100:] += 1.0
    assert find_change(series) is None


@pytest.mark.parametrize("series", [[], [1.0], [1.0] * 7, [1.0] * 50, [1.0] * 4 + [2.0] * 4])
def test_change_is_none_when_the_series_is_short_or_constant(series):
    assert find_change(series) is None


def test_change_is_none_when_a_value_is_not_finite():
    assert find_change([1.0] * 20 + [math.nan] + [2.0] * 20) is None


@given(st.lists(st.floats(-1e6, 1e6), max_size=80))
def test_change_splits_inside_the_series_when_one_is_found(series):
    change = find_change(series)
    if change is not None:
        assert 4 <= change.index <= len(series) - 4
        assert change.before != change.after
