"""Compare sides with few runs, often one: an interval from the steps within runs, plus the variation between runs.

A trial makes several runs per arm and measures their variation (``estimates``). A comparison of two sessions often has
one run per side. Its steps show how precise its own mean is, but not how much another run of the same training would
differ. So the interval combines both: the first as measured, the second from an A/A trial if there was one, otherwise
``USUAL_NOISE``.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_perf.records import Interval

from .estimates import log_interval, ratio_interval, welch_margin

USUAL_NOISE = 0.03
"""Largest relative difference of two runs of one training on a quiet machine in 19 of 20 cases.

From a standard deviation of 1 % between runs (1.96 · √2 · 1 %), as in the simulations of
docs/explanation/statistics.md.
"""

MIN_RUNS_PER_SIDE = 3
"""Runs per side from which their own variation is used. With two runs, that interval would be wider than the one with
the assumed variation (docs/explanation/comparison.md)."""

MIN_POINTS = 8
"""Points of a series (means of some steps) that an interval within a run needs."""

_MIN_BATCHES, _MAX_BATCHES = 4, 32
_MAX_CORRELATION = 0.9  # of more correlated batches, the mean is unknown


class Level(NamedTuple):
    """Mean time per step of one run, as the natural logarithm of seconds.

    ``variance`` is that of ``log``, from the spread within the run; None if the run is too short. ``n`` are the
    independent values behind it.
    """

    log: float
    variance: float | None
    n: float


def level(series: Sequence[float]) -> Level:
    """Return the mean log time per step of a run, with its variance.

    The series is divided into 4 to 32 batches in order. Each is represented by its median, so that one long pause does
    not dominate. The variance accounts for autocorrelation of batches (AR(1): × (1 + ρ) ÷ (1 − ρ)).

    Args:
        series: Seconds per step of successive parts of equal length, positive; at least one.
    """
    values = np.log(np.asarray(series, dtype=np.float64))
    if len(values) < MIN_POINTS:
        return Level(float(np.median(values)), None, 0)
    n = max(_MIN_BATCHES, min(_MAX_BATCHES, len(values) // 4))
    medians = np.array([np.median(batch) for batch in np.array_split(values, n)])
    correlation = _correlation(medians)
    widened = (1 + correlation) / (1 - correlation)
    return Level(float(medians.mean()), float(medians.var(ddof=1)) / n * widened, max(2.0, n / widened))


def ratio_of(base: Sequence[Level], new: Sequence[Level], noise: float) -> Interval | None:
    """Return ``new`` ÷ ``base``, above 1 if the new side is slower.

    With ``MIN_RUNS_PER_SIDE`` runs on both sides it is Welch's interval over the runs. Otherwise the spread within runs
    and ``noise`` (relative difference of two runs of one training in 19 of 20 cases) are added in quadrature; if runs
    of a side differ by more than ``noise``, that is used. None if a side has no run, or if a run is too short to know
    its spread and there are too few runs.
    """
    if not base or not new:
        return None
    if len(base) >= MIN_RUNS_PER_SIDE and len(new) >= MIN_RUNS_PER_SIDE:
        # One value per run, which is its own median.
        return ratio_interval([[math.exp(one.log)] for one in new], [[math.exp(one.log)] for one in base])
    if any(one.variance is None for one in (*base, *new)):
        return None
    center = float(np.mean([one.log for one in new]) - np.mean([one.log for one in base]))
    (variance_base, n_base), (variance_new, n_new) = _pooled(base), _pooled(new)
    within = welch_margin(variance_base * n_base, n_base, variance_new * n_new, n_new)
    noise_log = max(math.log1p(noise), *(float(np.ptp([one.log for one in side])) for side in (base, new)))
    between = noise_log * math.sqrt((1 / len(base) + 1 / len(new)) / 2)
    return log_interval(center, math.hypot(within, between))


def _pooled(runs: Sequence[Level]) -> tuple[float, int]:
    """Return the variance of the mean of the runs' levels, from within the runs, and the number of values."""
    variance = sum(one.variance or 0.0 for one in runs) / len(runs) ** 2
    return variance, max(2, int(sum(one.n for one in runs)))


def _correlation(values: NDArray[np.float64]) -> float:
    """Return the correlation of neighboring values, between 0 and ``_MAX_CORRELATION``."""
    centered = values - values.mean()
    square = float((centered**2).sum())
    if square == 0:
        return 0.0
    found = float((centered[1:] * centered[:-1]).sum()) / square
    # From few values the estimate is too low, by (1 + 3ρ) ÷ n (Kendall, Biometrika 41, 1954).
    found += (1 + 3 * max(0.0, found)) / len(values)
    return min(_MAX_CORRELATION, max(0.0, found))
