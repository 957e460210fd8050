"""Whether a noisy series of memory readings climbs, and how fast."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

MIN_READINGS = 10
"""Fewer have no interval worth the name, and no quarters."""

LEAK_BYTES_PER_STEP = 64 * 2**20 / 1000
"""64 MiB in a thousand steps: over a day of ten steps a second that is 54 GiB, which no training has to spare; less is
within what allocators and caches of a healthy one still gain."""

MAX_CORRELATION = 0.9
"""Above it a series is no longer told from a random walk; the interval is then widened 4.4 times."""

QUARTER_PART = 1 / 3
"""Of the mean rate, how fast the climb from each quarter to the next must be for it to count as steady."""

_Z_95 = 1.959964  # of the normal distribution, two-sided 95 %


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """A straight line through a series.

    Attributes:
        slope: Median of all pairwise slopes.
        low: Lower end of its 95 % interval.
        high: Upper end.
        is_steady: Whether every quarter climbs like the others; a warm-up that flattens or a single jump does not.
    """

    slope: float
    low: float
    high: float
    is_steady: bool


def fit_trend(x: Sequence[float], y: Sequence[float]) -> Trend | None:
    """The Theil–Sen slope with an interval for readings that resemble their neighbours.

    Sen's interval (P. K. Sen, JASA 63, 1968) takes the slopes at the ranks (N ± z·σ)/2, where σ² = n(n-1)(2n+5)/18 is
    the variance of Kendall's S for independent readings. Memory is anything but: what a process holds now it mostly
    held a moment ago. So σ² is multiplied by (1+r)/(1-r), r being the correlation of neighbouring residuals (the
    effective sample size of a first-order autoregression; K. H. Hamed and A. R. Rao, J. Hydrology 204, 1998, correct
    Kendall's test in the same way).

    Args:
        x: Positions, strictly rising.
        y: Readings.

    Returns:
        The trend in units of y for one of x; None with fewer than ``MIN_READINGS`` readings or one that is not finite.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = len(xs)
    if n < MIN_READINGS or not (np.isfinite(xs).all() and np.isfinite(ys).all()):
        return None
    first, second = np.triu_indices(n, k=1)
    slopes = np.sort((ys[second] - ys[first]) / (xs[second] - xs[first]))
    slope = float(np.median(slopes))
    r = _neighbour_correlation(ys - slope * xs)
    variance = n * (n - 1) * (2 * n + 5) / 18 * (1 + r) / (1 - r)
    reach = _Z_95 * math.sqrt(variance)
    below = max(0, math.floor((len(slopes) - reach) / 2))
    above = min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))
    return Trend(slope=slope, low=float(slopes[below]), high=float(slopes[above]), is_steady=_is_steady(xs, ys, slope))


def _neighbour_correlation(residuals: NDArray[np.float64]) -> float:
    """Of neighbouring residuals, between 0 and ``MAX_CORRELATION``.

    Short series show less of it than there is: by (1 + 4r)/n on average, which is put back (F. H. C. Marriott and
    J. A. Pope, Biometrika 41, 1954).
    """
    centred = residuals - np.median(residuals)
    power = float((centred**2).sum())
    if power == 0:
        return 0.0
    seen = float((centred[1:] * centred[:-1]).sum()) / power
    n = len(residuals)
    return min(MAX_CORRELATION, max(0.0, (n * seen + 1) / (n - 4)))


def _is_steady(xs: NDArray[np.float64], ys: NDArray[np.float64], slope: float) -> bool:
    """Whether the medians of the quarters go the slope's way, each at its part of the mean rate.

    Quarters of the readings, which may lie unevenly over the steps; so rates are compared, not rises.
    """
    at = np.array([np.median(quarter) for quarter in np.array_split(xs, 4)])
    levels = np.array([np.median(quarter) for quarter in np.array_split(ys, 4)])
    rates = np.diff(levels) / np.diff(at) * (1 if slope >= 0 else -1)
    mean_rate = abs(levels[-1] - levels[0]) / (at[-1] - at[0])
    return bool(slope != 0 and mean_rate > 0 and (rates >= QUARTER_PART * mean_rate).all())
