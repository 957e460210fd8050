"""The noise band: changes that count as none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_perf.stats.estimates import MIN_BAND, noise_band


@given(st.lists(st.floats(0.001, 10), max_size=8))
def test_band_is_at_least_one_percent_and_finite(levels: list[float]) -> None:
    assert MIN_BAND <= noise_band([[level] for level in levels], list(range(len(levels)))) < math.inf


def test_band_is_one_percent_when_runs_agree_or_were_not_repeated() -> None:
    assert noise_band([[0.1]] * 6) == 0.01
    assert noise_band([[0.1]]) == 0.01
    assert noise_band([]) == 0.01


def test_band_is_what_two_runs_differ_by_in_nineteen_of_twenty_cases() -> None:
    rng = np.random.default_rng(0)
    levels = 0.1 * np.exp(0.01 * rng.normal(size=400))
    band = noise_band([[level] for level in levels])
    pairs = 0.1 * np.exp(0.01 * rng.normal(size=(4000, 2)))
    within = np.abs(np.log(pairs[:, 0] / pairs[:, 1])) <= math.log1p(band)
    assert within.mean() == pytest.approx(0.95, abs=0.015)


def test_band_does_not_take_drift_for_noise_when_the_order_is_known() -> None:
    levels = [[0.1 * math.exp(0.01 * place)] for place in range(6)]
    assert noise_band(levels, list(range(6))) == 0.01
    assert noise_band(levels) > 0.04
