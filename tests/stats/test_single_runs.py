import math

import pytest

from lightning_perf.stats.single_runs import MIN_POINTS, Level, level, ratio_of


def test_level_is_the_median_when_the_run_is_too_short_for_a_spread() -> None:
    found = level([0.1, 0.2, 0.1])
    assert found.log == pytest.approx(math.log(0.1))
    assert found.variance is None


def test_level_has_no_variance_when_all_steps_take_the_same() -> None:
    found = level([0.1] * MIN_POINTS)
    assert found.log == pytest.approx(math.log(0.1))
    assert found.variance == pytest.approx(0.0, abs=1e-20)


def test_level_stays_when_one_part_is_a_long_pause() -> None:
    series = [0.1 + 0.001 * (i % 3) for i in range(64)]
    paused = [*series[:30], 10.0, *series[31:]]
    assert math.exp(level(paused).log) == pytest.approx(math.exp(level(series).log), rel=0.01)


def test_level_is_less_certain_when_neighbors_are_alike() -> None:
    values = [0.1, 0.101, 0.102, 0.103, 0.104, 0.105, 0.106, 0.107]
    drifting = [value for value in values for _ in range(8)]
    shuffled = [values[(5 * i) % 8] for i in range(8) for _ in range(8)]
    assert (level(drifting).variance or 0) > 2 * (level(shuffled).variance or 0)


def test_ratio_is_above_one_when_the_new_run_is_slower() -> None:
    interval = ratio_of([Level(math.log(0.1), 0.0, 16)], [Level(math.log(0.12), 0.0, 16)], noise=0.03)
    assert interval.value == pytest.approx(1.2)
    # Nothing is left to be uncertain of but what runs differ by.
    assert interval.low == pytest.approx(1.2 / 1.03)
    assert interval.high == pytest.approx(1.2 * 1.03)


def test_ratio_takes_the_runs_own_spread_when_both_sides_have_three() -> None:
    base = [Level(math.log(value), None, 0) for value in (0.100, 0.101, 0.1005)]
    new = [Level(math.log(value), None, 0) for value in (0.110, 0.111, 0.1105)]
    interval = ratio_of(base, new, noise=0.5)
    assert 1.08 < interval.low < 1.1 < interval.high < 1.12


def test_ratio_is_wider_when_two_runs_of_a_side_differ_by_more_than_the_noise() -> None:
    new = [Level(math.log(0.1), 1e-6, 16)]
    alike = ratio_of([Level(math.log(value), 1e-6, 16) for value in (0.100, 0.101)], new, noise=0.03)
    apart = ratio_of([Level(math.log(value), 1e-6, 16) for value in (0.090, 0.110)], new, noise=0.03)
    assert math.log(apart.high / apart.low) > 4 * math.log(alike.high / alike.low)


def test_ratio_is_narrower_when_one_side_has_more_runs() -> None:
    one = [Level(math.log(0.1), 1e-6, 16)]
    single, several = ratio_of(one, one, 0.03), ratio_of(one * 4, one, 0.03)
    assert several.high < single.high


def test_ratio_is_none_when_the_spread_of_a_single_run_is_unknown() -> None:
    assert ratio_of([Level(0.0, None, 0)], [Level(0.0, 1e-4, 16)], 0.03) is None
    assert ratio_of([], [Level(0.0, 1e-4, 16)], 0.03) is None
