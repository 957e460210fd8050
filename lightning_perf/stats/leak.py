"""Test whether a noisy series of memory readings grows, and how fast."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_READINGS = 10
"""Readings that an interval and a division into quarters need."""

LEAK_BYTES_PER_STEP = 64 * 2**20 / 1000
"""64 MiB per 1,000 steps: 54 GiB over a day of ten steps per second. Caches of a healthy training grow less."""

MAX_CORRELATION = 0.9
"""Above it, a series cannot be distinguished from a random walk; the interval is then 4.4 times as wide."""

QUARTER_PART = 1 / 3
"""Fraction of the mean rate that memory must grow by between all quarters to count as steady growth."""

_Z_95 = 1.959964  # of the normal distribution, two-sided 95 %


class Trend(NamedTuple):
    """The median of all pairwise slopes of a series with its 95 % interval, and whether all quarters grow alike.

    ``is_steady`` is False for a warm-up that flattens, and for a single jump.
    """

    slope: float
    low: float
    high: float
    is_steady: bool


def fit_trend(x: Sequence[float], y: Sequence[float]) -> Trend | None:
    """Return the Theil–Sen slope with an interval for correlated readings; None with too few or non-finite readings.

    Sen's interval (P. K. Sen, JASA 63, 1968) takes the slopes at the ranks (N ± z·σ)/2, where σ² = n(n-1)(2n+5)/18 is
    the variance of Kendall's S for independent readings. Memory readings are correlated, so σ² is multiplied by
    (1+r)/(1-r), r being the correlation of neighboring residuals (the effective sample size of a first-order
    autoregression; K. H. Hamed and A. R. Rao, J. Hydrology 204, 1998, correct Kendall's test in the same way).
    Positions ``x`` must be strictly increasing.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = len(xs)
    if n < MIN_READINGS or not (np.isfinite(xs).all() and np.isfinite(ys).all()):
        return None
    first, second = np.triu_indices(n, k=1)
    slopes = np.sort((ys[second] - ys[first]) / (xs[second] - xs[first]))
    slope = float(np.median(slopes))
    r = _lag_1_correlation(ys - slope * xs)
    variance = n * (n - 1) * (2 * n + 5) / 18 * (1 + r) / (1 - r)
    margin = _Z_95 * math.sqrt(variance)
    below = max(0, math.floor((len(slopes) - margin) / 2))
    above = min(len(slopes) - 1, math.ceil((len(slopes) + margin) / 2))
    return Trend(slope=slope, low=float(slopes[below]), high=float(slopes[above]), is_steady=_is_steady(xs, ys, slope))


def _lag_1_correlation(residuals: NDArray[np.float64]) -> float:
    """Return the correlation of neighboring residuals, between 0 and ``MAX_CORRELATION``.

    In short series the estimate is too low by (1 + 4r)/n on average, which is corrected (F. H. C. Marriott and J. A.
    Pope, Biometrika 41, 1954).
    """
    centered = residuals - np.median(residuals)
    power = float((centered**2).sum())
    if power == 0:
        return 0.0
    seen = float((centered[1:] * centered[:-1]).sum()) / power
    n = len(residuals)
    return min(MAX_CORRELATION, max(0.0, (n * seen + 1) / (n - 4)))


def _is_steady(xs: NDArray[np.float64], ys: NDArray[np.float64], slope: float) -> bool:
    """Return whether the medians of all quarters grow at a fraction of the mean rate.

    Rates are compared rather than differences, because readings may be unevenly spaced.
    """
    at = np.array([np.median(quarter) for quarter in np.array_split(xs, 4)])
    levels = np.array([np.median(quarter) for quarter in np.array_split(ys, 4)])
    rates = np.diff(levels) / np.diff(at) * (1 if slope >= 0 else -1)
    mean_rate = abs(levels[-1] - levels[0]) / (at[-1] - at[0])
    return bool(slope != 0 and mean_rate > 0 and (rates >= QUARTER_PART * mean_rate).all())
