"""The trend of memory: leaks that it finds, and growth that is no leak."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_perf.stats.leak import MIN_READINGS, fit_trend

STEPS = np.arange(0, 200, 4, dtype=float)


@given(
    slope=st.floats(-1e6, 1e6).filter(lambda s: s == 0 or abs(s) > 1e-3),
    level=st.floats(0, 1e9),
    n=st.integers(MIN_READINGS, 60),
)
@settings(max_examples=60, deadline=None)
def test_trend_is_the_line_itself_when_there_is_no_noise(slope: float, level: float, n: int) -> None:
    x = np.arange(n, dtype=float)
    trend = fit_trend(x, level + slope * x)
    assert trend.slope == pytest.approx(slope, rel=1e-3, abs=1e-3)
    assert trend.low <= trend.slope <= trend.high
    assert trend.is_steady == (slope != 0)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 1e6), shift=st.floats(-1e6, 1e6))
@settings(max_examples=60, deadline=None)
def test_trend_scales_with_the_readings_and_ignores_their_level(seed: int, scale: float, shift: float) -> None:
    y = np.random.default_rng(seed).normal(size=40)
    x = np.arange(40, dtype=float)
    plain, moved = fit_trend(x, y), fit_trend(x, scale * y + shift)
    assert moved.slope == pytest.approx(scale * plain.slope, rel=1e-3, abs=1e-6)
    assert moved.low <= moved.slope <= moved.high


def test_interval_holds_the_true_slope_when_noise_is_independent() -> None:
    hits = 0
    for seed in range(200):
        y = 3.0 * STEPS + np.random.default_rng(seed).normal(scale=50, size=len(STEPS))
        trend = fit_trend(STEPS, y)
        hits += trend.low <= 3.0 <= trend.high
    assert hits >= 0.92 * 200


def test_interval_holds_zero_when_readings_resemble_their_neighbors() -> None:
    hits = 0
    for seed in range(200):
        rng, level, y = np.random.default_rng(seed), 0.0, []
        for _ in STEPS:
            level = 0.7 * level + rng.normal()
            y.append(level)
        trend = fit_trend(STEPS, y)
        hits += trend.low <= 0.0 <= trend.high
    assert hits >= 0.9 * 200


@pytest.mark.parametrize(
    "shape",
    [
        np.minimum(STEPS, 60.0),  # a warm-up that flattens
        np.where(STEPS < 100, 0.0, 100.0),  # a single jump
        np.where(STEPS < 160, 0.0, STEPS - 160),  # flat until late
    ],
)
def test_growth_is_not_steady_when_only_part_of_the_readings_rise(shape: np.ndarray) -> None:
    noise = np.random.default_rng(0).normal(scale=0.5, size=len(STEPS))
    assert not fit_trend(STEPS, shape + noise).is_steady


def test_growth_is_steady_when_readings_are_unevenly_spaced() -> None:
    x = np.array([8, 13, 18, 23, 28, 33, 38, 43, 48, 53, 58, 63, 68, 128, 133, 173, 178, 198], dtype=float)
    assert fit_trend(x, 1e8 + 240_000 * x).is_steady
    assert not fit_trend(x, 1e8 + 240_000 * np.minimum(x, 60)).is_steady


def test_slope_stays_when_a_fifth_of_the_readings_are_spikes() -> None:
    y = 2.0 * STEPS
    y[::5] += 1e6
    assert fit_trend(STEPS, y).slope == pytest.approx(2.0, rel=0.2)


@pytest.mark.parametrize("y", [np.zeros(MIN_READINGS - 1), np.array([np.nan] * MIN_READINGS)])
def test_there_is_no_trend_when_readings_are_too_few_or_not_numbers(y: np.ndarray) -> None:
    assert fit_trend(np.arange(len(y), dtype=float), y) is None
