"""Estimates with 95 % intervals from a few runs of many blocks.

Runs differ by more than their blocks tell: the layout of memory, the clock that the machine granted, what else ran. So
the unit of every interval is the run: its level is the median of its block means, and what runs of one arm differ by
is the noise. Two to five runs are too few for a bootstrap: it takes the spread of so few values for the whole
truth, and its 95 % interval holds the true ratio in 80 to 92 % of trials (docs/explanation/statistics.md has the
simulation). Welch's t-interval on the logarithms allows for that: 94 to 97 % from three runs an arm on; with two
and two it errs on the careful side, up to 99 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from lightning_perf.records import Interval

CONFIDENCE = 0.95

MIN_RUNS = 2
"""Runs an arm that an interval needs: one run says nothing of how runs differ."""

MIN_RUNS_FOR_DRIFT = 6
"""Runs of both arms together from which the drift of the machine is taken out: with four, the line would fit the
noise (92 % instead of 95 % held the true ratio)."""

Runs = Sequence[Sequence[float]]
"""Block means by run; positive, no run without blocks."""


def levels(runs: Runs) -> NDArray[np.float64]:
    """The natural logarithm of each run's median block, shape (runs,)."""
    return np.log(np.array([median(run) for run in runs], dtype=np.float64))


def step_interval(runs: Runs) -> Interval | None:
    """The step of one arm: the geometric mean of its runs' median blocks, Student's interval on the logarithms.

    Returns:
        In the unit of the blocks; None with fewer than ``MIN_RUNS`` runs.
    """
    logs = levels(runs)
    if len(logs) < MIN_RUNS:
        return None
    return _interval(float(logs.mean()), _t(len(logs) - 1) * math.sqrt(_variance(logs) / len(logs)))


def ratio_interval(
    base: Runs, new: Runs, base_at: Sequence[float] | None = None, new_at: Sequence[float] | None = None
) -> Interval | None:
    """The step of ``base`` ÷ the step of ``new``: above 1 where ``new`` is faster.

    Welch's interval on the logarithms of the runs' levels (B. L. Welch, Biometrika 34, 1947): arms may differ in
    their spread. Where the order of runs is given and they are ``MIN_RUNS_FOR_DRIFT`` or more, the machine's drift
    is first taken out as a straight line that both arms share, and the degrees of freedom are cut by the one it costs.

    Args:
        base: Block means of the runs of one arm.
        new: Of the other.
        base_at: Places of the runs of ``base`` in the order in which all runs were made; None to leave drift in.
        new_at: The same for ``new``.

    Returns:
        The ratio; None where either has fewer than ``MIN_RUNS`` runs.
    """
    a, b = levels(base), levels(new)
    if len(a) < MIN_RUNS or len(b) < MIN_RUNS:
        return None
    kept = 1.0
    if base_at is not None and new_at is not None and len(a) + len(b) >= MIN_RUNS_FOR_DRIFT:
        a, b = _without_drift(a, b, np.asarray(base_at, dtype=np.float64), np.asarray(new_at, dtype=np.float64))
        kept = (len(a) + len(b) - 3) / (len(a) + len(b) - 2)
    reach = welch_reach(_variance(a) / kept, len(a), _variance(b) / kept, len(b), kept)
    return _interval(float(a.mean() - b.mean()), reach)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean with Student's 95 % interval; None with fewer than two values."""
    if len(values) < MIN_RUNS:
        return None
    found = np.asarray(values, dtype=np.float64)
    mean, reach = float(found.mean()), _t(len(found) - 1) * math.sqrt(_variance(found) / len(found))
    return Interval(value=mean, low=mean - reach, high=mean + reach)


def drift(groups: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    """The slope that groups of values share, by least squares with a level of its own for each group.

    Args:
        groups: Values and their places, each of shape (n,).

    Returns:
        In the values' unit for one place; 0 where no group has two places.
    """
    square = sum(float(((at - at.mean()) ** 2).sum()) for _, at in groups)
    product = sum(float(((x - x.mean()) * (at - at.mean())).sum()) for x, at in groups)
    return product / square if square else 0.0


def welch_reach(variance_a: float, n_a: int, variance_b: float, n_b: int, kept: float = 1.0) -> float:
    """Half the width of Welch's 95 % interval of a difference of means; 0 where neither group varies.

    Args:
        variance_a: Of single values of the first group.
        n_a: Its values, at least 2.
        variance_b: Of single values of the second group.
        n_b: Its values, at least 2.
        kept: Part of the degrees of freedom that is left, in 0…1.
    """
    part_a, part_b = variance_a / n_a, variance_b / n_b
    total = part_a + part_b
    if total == 0:
        return 0.0
    # Shares rather than squares of the variances: those of equal runs would underflow.
    df = 1 / ((part_a / total) ** 2 / (n_a - 1) + (part_b / total) ** 2 / (n_b - 1))
    return _t(df * kept) * math.sqrt(total)


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


def _interval(centre: float, reach: float) -> Interval:
    # An interval over a factor of e^300 says as much as one without end, and JSON has no infinity.
    reach = min(reach, 300.0)
    return Interval(value=math.exp(centre), low=math.exp(centre - reach), high=math.exp(centre + reach))
