import math

import numpy as np
import pytest
from scipy.stats import t

from lightning_perf.stats.next_run import (
    ALPHA,
    POWER,
    Levels,
    TimeSeries,
    alpha_of,
    detectable,
    excess,
    explained,
    remove_machine_speed,
    residuals,
    threshold,
)


def runs(*levels: float, n: int = 1) -> list[TimeSeries]:
    return [TimeSeries([math.exp(level)] * n, 8) for level in levels]


def test_a_run_is_compared_with_the_mean_of_the_last_five() -> None:
    earlier = runs(9.0, 9.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    assert excess(earlier, runs(0.4)[0]) == pytest.approx(0.1)


def test_the_reach_is_that_of_a_prediction_interval() -> None:
    levels = np.array([0.01, -0.02, 0.03, 0.0])
    expected = t.ppf(0.99, 3) * levels.std(ddof=1) * math.sqrt(1 + 1 / 4)
    assert threshold(runs(*levels), runs(0.0)[0], 0.01) == pytest.approx(expected)


def test_the_rate_of_false_alarms_is_alpha_for_runs_that_differ_normally() -> None:
    rng = np.random.default_rng(1)
    for n in (3, 5, 20):
        found = [
            excess(earlier, new) > threshold(earlier, new, 0.05)
            for *earlier, new in (runs(*rng.normal(0, 0.03, n + 1)) for _ in range(1500))
        ]
        assert np.mean(found) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("n", [3, 6])
def test_a_short_run_needs_a_larger_excess_by_what_parts_of_earlier_runs_differ(n: int) -> None:
    rng = np.random.default_rng(2)
    noisy = [TimeSeries(np.exp(rng.normal(0, 0.1, 100)).tolist(), 8) for _ in range(n)]
    short, long = TimeSeries(noisy[0].step_s[:20], 8), noisy[0]
    between = (threshold(noisy, long, 0.01) / t.ppf(0.99, n - 1)) ** 2
    parts = [np.log(run.step_s).reshape(5, 20) for run in noisy]
    levels = np.array([[np.sort(part)[5:15].mean() for part in run] for run in parts])
    within = levels.var(axis=1, ddof=0).mean() * 5 / 4 * (1 - 1 / 5) * (1 + 1 / n)
    quantile = (between * t.ppf(0.99, n - 1) + within * t.ppf(0.99, 4 * n)) / (between + within)
    expected = quantile * math.sqrt(between + within)
    assert threshold(noisy, short, 0.01) == pytest.approx(expected)


def test_a_run_is_compared_with_the_starts_of_longer_runs() -> None:
    slow_start = [TimeSeries([1.5 * level] * 4 + [level] * 12, 8) for level in (1.0, 1.1, 0.9)]
    assert excess(slow_start, TimeSeries([1.5] * 4, 8)) == pytest.approx(-np.log([1.0, 1.1, 0.9]).mean())
    assert excess(slow_start, TimeSeries([1.5] * 2, 8)) == pytest.approx(-np.log([1.0, 1.1, 0.9]).mean())


def test_an_increase_that_is_detectable_is_found_in_95_percent() -> None:
    rng = np.random.default_rng(4)
    found = [
        excess(earlier, new) + detectable(earlier, new, 0.01) > threshold(earlier, new, 0.01)
        for *earlier, new in (runs(*rng.normal(0, 0.03, 6)) for _ in range(1500))
    ]
    assert np.mean(found) == pytest.approx(POWER, abs=0.02)


def test_equal_earlier_runs_have_a_threshold_of_zero() -> None:
    assert threshold(runs(0.5, 0.5, 0.5, n=20), runs(0.5)[0], 0.01) == pytest.approx(0.0)


def test_one_disturbed_run_of_many_and_rare_slow_steps_hide_little() -> None:
    rng = np.random.default_rng(3)
    levels = rng.normal(0, 0.01, 20)
    usual = threshold(runs(*levels), runs(0.0)[0], 0.01)
    levels[3] = 1.0
    assert threshold(runs(*levels), runs(0.0)[0], 0.01) < 4 * usual
    calm = runs(*rng.normal(0, 0.01, 5), n=20)
    slow_steps = TimeSeries([*calm[0].step_s[:16], 9.0, 9.0, 9.0, 9.0], 8)
    assert excess(calm, slow_steps) == pytest.approx(excess(calm, calm[0]))


def on_machines(rng: np.random.Generator, n: int, slope: float) -> list[TimeSeries]:
    """Return runs on a machine whose speed varies by 10 %; a slower machine makes steps longer by ``slope``."""
    speeds = np.cumsum(rng.normal(0, 0.1, n))
    levels = slope * speeds + rng.normal(0, 0.01, n)
    return [one._replace(fixed_s=2e-5 * math.exp(speed)) for one, speed in zip(runs(*levels), speeds, strict=True)]


def without_speed(earlier: list[TimeSeries]) -> list[TimeSeries]:
    return [one._replace(fixed_s=None) for one in earlier]


@pytest.mark.parametrize("n", [10, 20])
@pytest.mark.parametrize("slope", [0.7, 0.0])
def test_what_the_speed_of_the_machine_explains_is_no_regression(slope: float, n: int) -> None:
    rng = np.random.default_rng(5)
    false, found = [], []
    for *earlier, new in (on_machines(rng, n + 1, slope) for _ in range(1500)):
        limit = threshold(earlier, new, 0.05)
        false.append(excess(earlier, new) > limit)
        found.append(excess(earlier, new) + math.log(1.06) > limit)
    assert np.mean(false) == pytest.approx(0.05, abs=0.02)
    assert np.mean(found) > 0.9


def test_threshold_is_that_of_a_prediction_by_regression_on_the_speed() -> None:
    rng = np.random.default_rng(7)
    *earlier, new = on_machines(rng, 6, 0.7)
    speeds = np.log([one.fixed_s for one in earlier if one.fixed_s])
    levels = np.log([one.step_s[0] for one in earlier])
    now = math.log(new.fixed_s or 0.0)
    slope, height = np.polyfit(speeds, levels, 1)
    assert excess(earlier, new) == pytest.approx(math.log(new.step_s[0]) - height - slope * now)
    assert explained(earlier, new) == pytest.approx(slope * (now - speeds.mean()))
    rest = residuals(levels - slope * speeds)
    leverage = (now - speeds.mean()) ** 2 / ((speeds - speeds.mean()) ** 2).sum()
    variance = (rest**2).sum() / 3 * (1 + 1 / 5 + leverage)
    assert threshold(earlier, new, 0.02) == pytest.approx(t.ppf(0.98, 3) * math.sqrt(variance))


def test_leverage_is_that_of_the_last_runs_when_there_are_more() -> None:
    speeds = np.array([0.0] * 5 + [0.1] * 5)
    levels = remove_machine_speed(Levels(0.7 * speeds, 0.14), speeds, 0.2)
    assert (levels.n_fitted, levels.removed) == (1, pytest.approx(0.07))
    assert levels.leverage == pytest.approx(0.8)  # ((0.2 - 0.05)^2 - (0.1 - 0.05)^2) / 0.025


@pytest.mark.parametrize("slope", [-0.7, 0.0])
def test_speed_is_not_used_where_earlier_runs_were_no_slower_with_it(slope: float) -> None:
    speeds = np.linspace(0, 0.3, 6)
    earlier = [
        one._replace(fixed_s=2e-5 * math.exp(speed))
        for one, speed in zip(runs(*(slope * speeds + [0, 0.02, -0.02, 0, 0.02, -0.02])), speeds, strict=True)
    ]
    new = runs(0.1)[0]._replace(fixed_s=3e-5)
    assert explained(earlier, new) == 0.0
    assert excess(earlier, new) == pytest.approx(excess(without_speed(earlier), new))
    assert threshold(earlier, new, 0.01) == pytest.approx(threshold(without_speed(earlier), new, 0.01))


def test_steeper_slopes_than_twice_the_speed_are_chance() -> None:
    speeds = np.array([0.0, 0.001, 0.002, 0.003, 0.004])
    assert remove_machine_speed(Levels(9 * speeds, 0.3), speeds, 0.104).removed == pytest.approx(2 * 0.102)


def test_speed_does_not_count_unless_each_run_of_enough_has_it() -> None:
    *earlier, new = on_machines(np.random.default_rng(6), 6, 0.7)
    assert explained(earlier, new) != 0.0
    for base, last in (
        (without_speed(earlier), new),
        ([*earlier[1:], *without_speed(earlier[:1])], new),
        (earlier, new._replace(fixed_s=None)),
        (earlier[:4], new),
    ):
        assert explained(base, last) == 0.0
        assert excess(base, last) == pytest.approx(excess(without_speed(base), last))


def test_a_speed_that_never_varied_explains_nothing() -> None:
    earlier = [one._replace(fixed_s=2.1e-5) for one in runs(0.0, 0.1, 0.2, 0.0, 0.1, 0.0, 0.1)]
    new = runs(0.5)[0]._replace(fixed_s=3e-5)
    assert explained(earlier, new) == pytest.approx(0.0, abs=1e-6)
    assert threshold(earlier, new, 0.01) == pytest.approx(threshold(without_speed(earlier), new, 0.01))


def test_all_comparisons_of_a_run_share_alpha() -> None:
    assert sum(alpha_of(n) for n in range(20)) == pytest.approx(ALPHA)
    assert alpha_of(0) == pytest.approx(0.9 * ALPHA)
    assert alpha_of(0) > alpha_of(1) > alpha_of(2) > 0
