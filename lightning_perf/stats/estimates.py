"""Estimates with 95 % intervals from a few runs of many blocks.

Runs differ by more than their blocks show: memory layout, clock speed, other processes. So the unit of every interval
is the run: its level is the median of its block means, and the differences between runs of one arm are the noise. Two
to five runs are too few for a bootstrap, whose 95 % interval contains the true ratio in only 80 to 92 % of trials
(simulation in docs/explanation/statistics.md). Welch's t-interval on the logarithms reaches 94 to 97 % from three runs
per arm on, and up to 99 % with two and two.
"""

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from lightning_perf.records import Interval

CONFIDENCE = 0.95

MIN_RUNS = 2
"""Runs per arm that an interval needs."""

MIN_RUNS_FOR_DRIFT = 6
"""Runs of both arms together from which drift is removed: with four, the line would fit the noise (the interval
contained the true ratio in 92 % instead of 95 %)."""

MIN_BAND = 0.01
"""Smallest band: machines with other processes vary by 1 %."""

_LARGEST = 10.0  # of the logarithm, a factor of 22,000, to stay finite
_MAX_MARGIN = 15.0  # of the logarithm, a factor of three million, because a saved session has no ratio above 1e9
_Z_DIFFERENCE = 1.959964 * math.sqrt(2)  # of the difference of two normal values, two-sided 95 %

Runs = Sequence[Sequence[float]]
"""Block means by run; positive, no run without blocks."""


def levels(runs: Runs) -> NDArray[np.float64]:
    """Return the natural logarithm of each run's median block, shape (runs,)."""
    return np.log(np.array([median(run) for run in runs], dtype=np.float64))


def step_interval(runs: Runs) -> Interval | None:
    """Return the step of one arm: the geometric mean of its runs with Student's interval, if enough runs."""
    found = mean_interval(levels(runs))
    return log_interval(found.value, found.high - found.value) if found is not None else None


def ratio_interval(
    base: Runs, new: Runs, base_at: Sequence[float] | None = None, new_at: Sequence[float] | None = None
) -> Interval | None:
    """Return the step of ``base`` ÷ the step of ``new``, above 1 if ``new`` is faster; None if an arm has too few runs.

    Welch's interval on the logarithms of the runs' levels (B. L. Welch, Biometrika 34, 1947): arms may differ in their
    spread. If ``base_at`` and ``new_at`` give the positions of at least ``MIN_RUNS_FOR_DRIFT`` runs in the order of all
    runs, drift of the machine is removed first, as a straight line that both arms share, which costs one degree of
    freedom.
    """
    a, b = levels(base), levels(new)
    if len(a) < MIN_RUNS or len(b) < MIN_RUNS:
        return None
    kept = 1.0
    if base_at is not None and new_at is not None and len(a) + len(b) >= MIN_RUNS_FOR_DRIFT:
        a, b = _without_drift(a, b, np.asarray(base_at, dtype=np.float64), np.asarray(new_at, dtype=np.float64))
        kept = (len(a) + len(b) - 3) / (len(a) + len(b) - 2)
    margin = welch_margin(_variance(a) / kept, len(a), _variance(b) / kept, len(b), kept)
    return log_interval(float(a.mean() - b.mean()), margin)


def mean_interval(values: Sequence[float] | NDArray[np.float64]) -> Interval | None:
    """Return the mean with Student's 95 % interval; None with fewer than two values."""
    if len(values) < MIN_RUNS:
        return None
    found = np.asarray(values, dtype=np.float64)
    mean, margin = float(found.mean()), _t(len(found) - 1) * math.sqrt(_variance(found) / len(found))
    return Interval(value=mean, low=mean - margin, high=mean + margin)


def drift(groups: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    """Return the slope that groups of (values, positions) share, by least squares with one level per group."""
    square = sum(float(((at - at.mean()) ** 2).sum()) for _, at in groups)
    product = sum(float(((x - x.mean()) * (at - at.mean())).sum()) for x, at in groups)
    return product / square if square else 0.0


def welch_margin(variance_a: float, n_a: int, variance_b: float, n_b: int, kept: float = 1.0) -> float:
    """Return the margin of error of a difference of means: half the width of Welch's 95 % interval.

    Variances are of single values, of which each group has at least two; ``kept`` is the fraction of the degrees of
    freedom that is left.
    """
    part_a, part_b = variance_a / n_a, variance_b / n_b
    total = part_a + part_b
    if total == 0:
        return 0.0
    # Shares, because squares of tiny variances would underflow.
    df = 1 / ((part_a / total) ** 2 / (n_a - 1) + (part_b / total) ** 2 / (n_b - 1))
    return _t(df * kept) * math.sqrt(total)


def noise_band(runs: Runs, at: Sequence[float] | None = None) -> float:
    """Return the relative difference that two runs of the same training stay within in 19 of 20 cases.

    ``runs`` are those of both halves of the A/A pair. The band is a property of the machine and the training, so it
    does not shrink with more runs as an interval does. It is at least ``MIN_BAND``, also with too few runs. With the
    positions ``at`` of ``MIN_RUNS_FOR_DRIFT`` runs in the order of all runs, drift is removed.
    """
    logs = levels(runs)
    n, n_fitted = len(logs), 1
    if n < MIN_RUNS:
        return MIN_BAND
    if at is not None and n >= MIN_RUNS_FOR_DRIFT:
        places = np.asarray(at, dtype=np.float64)
        logs, n_fitted = logs - drift([(logs, places)]) * (places - places.mean()), 2
    deviation = math.sqrt(float(((logs - logs.mean()) ** 2).sum()) / (n - n_fitted))
    return max(MIN_BAND, math.expm1(min(_LARGEST, _Z_DIFFERENCE * deviation)))


def _without_drift(
    a: NDArray[np.float64], b: NDArray[np.float64], a_at: NDArray[np.float64], b_at: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    slope = drift([(a, a_at), (b, b_at)])
    middle = float(np.concatenate([a_at, b_at]).mean())
    return a - slope * (a_at - middle), b - slope * (b_at - middle)


def _variance(values: NDArray[np.float64]) -> float:
    return float(values.var(ddof=1))


def _t(df: float) -> float:
    return float(stdtrit(df, 0.5 + CONFIDENCE / 2))


def log_interval(center: float, margin: float) -> Interval:
    """Return the interval whose logarithms are ``center`` ± ``margin``, at most ± ``_MAX_MARGIN``."""
    margin = min(margin, _MAX_MARGIN)
    return Interval(value=math.exp(center), low=math.exp(center - margin), high=math.exp(center + margin))
