"""Decisions from alternating blocks, on simulated steps."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from lightning_perf.records import Interval
from lightning_perf.stats.sequential import ERROR, MAX_VALUES, BlockTrial, _margin, combined_speedup
from tests.fuzzing import FUZZ


def decide(seed: int, gain: float, noise: float, drift: float = 0.0) -> BlockTrial:
    """Return the trial of a change that makes steps ``gain`` times as fast, decided."""
    draw, trial = np.random.default_rng(seed), BlockTrial(random.Random(seed))
    for n in range(10_000):
        if trial.verdict() is not None:
            return trial
        mean_s = math.exp(draw.normal(0, noise) + drift * n)
        trial.add(mean_s / gain if trial.is_next_treated else mean_s)
    raise AssertionError("never decided")


def test_order_is_mirrored_in_each_two_pairs_and_random_between_them() -> None:
    trial, order = BlockTrial(random.Random(1)), []
    for _ in range(40):
        order.append(trial.is_next_treated)
        trial.add(1.0)
    fours = [tuple(order[i : i + 4]) for i in range(0, 40, 4)]
    assert set(fours) == {(True, False, False, True), (False, True, True, False)}


@pytest.mark.parametrize("noise", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("drift", [0.0, 0.002, -0.002])
def test_change_without_effect_is_undone_when_noise_and_drift_are_all_there_is(noise: float, drift: float) -> None:
    verdicts = [decide(seed, 1.0, noise, drift).verdict() for seed in range(50)]
    assert verdicts.count("kept") <= 1


@pytest.mark.parametrize("gain", [1.1, 1.5, 4.0])
def test_gain_is_kept_when_it_is_beyond_the_noise(gain: float) -> None:
    trials = [decide(seed, gain, 0.01) for seed in range(20)]
    assert all(trial.verdict() == "kept" for trial in trials)
    assert all(len(trial.logs) <= 24 for trial in trials)


def test_slower_change_is_undone_at_the_first_check() -> None:
    trial = decide(3, 0.5, 0.01)
    assert trial.verdict() == "undone"
    assert len(trial.logs) == 6
    assert trial.lost_s_per_step == pytest.approx(6, rel=0.1)


def test_certain_gain_of_less_than_two_percent_is_undone() -> None:
    trial = decide(1, 1.015, 0.0001)
    speedup = trial.speedup()
    assert trial.verdict() == "undone"
    assert 1.0 < speedup.low < 1.015 < speedup.high < 1.02


def test_interval_contains_the_mean_at_all_checks_together() -> None:
    n_trials, draw = 40 * FUZZ, np.random.default_rng(5)
    values = draw.normal(0, 1, (n_trials, MAX_VALUES))
    missed = [
        any(abs(row[:n].mean()) > _margin(n, float(row[:n].std(ddof=1))) for n in range(2, MAX_VALUES + 1))
        for row in values
    ]
    assert sum(missed) <= stats.binom.ppf(0.9999, n_trials, ERROR)


def test_interval_becomes_narrower_with_each_value_and_is_unbounded_with_two() -> None:
    margins = [_margin(n, 1.0) for n in range(2, 50)]
    assert margins[0] == math.inf
    assert all(before > after for before, after in pairwise(margins))
    assert margins[-1] > stats.t.ppf(0.975, 48) / math.sqrt(49)  # wider than for a single check


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 7])
def test_pair_is_repeated_when_one_of_its_blocks_could_not_be_measured(place: int) -> None:
    trial = BlockTrial(random.Random(4))
    for n in range(16):
        is_treated = trial.is_next_treated
        trial.add(None if n == place else 0.5 if is_treated else 1.0)
    assert trial.logs == pytest.approx([math.log(2)] * len(trial.logs))
    assert len(trial.logs) == 7


def test_product_is_exact_for_one_gain_and_widens_with_more() -> None:
    one = Interval(value=1.5, low=1.4, high=1.6)
    alone, both = combined_speedup([one]), combined_speedup([one, one])
    assert (alone.value, alone.low, alone.high) == pytest.approx((1.5, 1.4, 1.6))
    assert both.value == pytest.approx(2.25)
    assert 1.4**2 < both.low < both.value < both.high < 1.6**2
    assert combined_speedup([]) is None
