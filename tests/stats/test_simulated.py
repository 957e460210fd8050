"""How often the statistics are right on simulated machines: a small version of benchmarks/statistics, seeds fixed.

With 700 trials a share of 95 % is known to ± 1.6 % (two standard errors), so the bounds of 93 and 97 % are tested
within that much.
"""

import pytest

from benchmarks.statistics import simulated

NOISES = {noise.name: noise for noise in simulated.NOISES}


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("name", NOISES)
def test_interval_of_an_arm_holds_the_true_ratio_in_93_to_97_percent(name: str, repeats: int) -> None:
    assert 0.92 <= simulated.coverage(NOISES[name], repeats, 700) <= 0.98


@pytest.mark.parametrize("repeats", [3, 5])
@pytest.mark.parametrize("name", NOISES)
def test_interval_of_a_rung_holds_the_true_ratio_in_93_to_97_percent(name: str, repeats: int) -> None:
    assert 0.92 <= simulated.coverage(NOISES[name], repeats, 700, is_rung=True) <= 0.98


@pytest.mark.parametrize("name", NOISES)
def test_interval_of_a_rung_is_careful_when_there_are_two_runs_each(name: str) -> None:
    assert simulated.coverage(NOISES[name], 2, 700, is_rung=True) >= 0.95


@pytest.mark.parametrize("repeats", [2, 3, 5])
@pytest.mark.parametrize("name", NOISES)
def test_an_arm_that_changes_nothing_is_called_a_change_in_at_most_5_percent(name: str, repeats: int) -> None:
    verdicts = simulated.calls(NOISES[name], repeats, 1.0, 200)
    assert verdicts.get("improved", 0) + verdicts.get("regressed", 0) <= 0.05


@pytest.mark.parametrize("name", ["runs differ by 1 %", "heavy tails and drift of 3 %"])
def test_stopping_early_keeps_false_positives_below_5_percent(name: str) -> None:
    verdicts, made = simulated.stopped_early(NOISES[name], 1.0, 60)
    assert verdicts.get("improved", 0) + verdicts.get("regressed", 0) <= 0.05
    assert made <= 2


def test_stopping_early_saves_runs_when_the_gain_is_clear() -> None:
    verdicts, made = simulated.stopped_early(NOISES["runs differ by 1 %"], 1.5, 30)
    assert verdicts["improved"] >= 0.95
    assert made < 0.8


def test_percentile_bootstrap_falls_short_with_three_runs_which_is_why_it_is_not_used() -> None:
    noise = NOISES["runs differ by 1 %"]
    assert simulated.coverage(noise, 3, 150, method=simulated.percentile_bootstrap) < 0.93


def test_a_gain_of_ten_percent_is_found_with_three_repeats_and_one_percent_noise() -> None:
    assert simulated.calls(NOISES["runs differ by 1 %"], 3, 1.1, 200)["improved"] >= 0.9


def test_a_change_beyond_the_band_is_hardly_ever_called_none() -> None:
    assert simulated.calls(NOISES["runs differ by 1 %"], 3, 1.06, 300).get("no_change", 0) <= 0.025
