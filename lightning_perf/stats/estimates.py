"""Estimates with 95 % intervals from a few runs of many blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lightning_perf.records import Interval

Runs = Sequence[Sequence[float]]
"""Block means of each run; all positive, no run without blocks."""


def step_interval(runs: Runs) -> Interval | None:
    """The step of an arm: the geometric mean of its runs' median blocks.

    Returns:
        In the unit of the blocks; None with fewer than two runs.
    """
    logs = _levels(runs)
    if len(logs) < 2:
        return None
    reach = float(stats.t.ppf(0.975, len(logs) - 1)) * float(logs.std(ddof=1)) / len(logs) ** 0.5
    return _interval(float(logs.mean()), reach)


def ratio_interval(base: Runs, new: Runs) -> Interval | None:
    """The step of ``base`` ÷ the step of ``new``: above 1 where ``new`` is faster.

    Returns:
        The ratio; None where either has fewer than two runs.
    """
    a, b = _levels(base), _levels(new)
    if len(a) < 2 or len(b) < 2:
        return None
    variances = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    total = sum(variances)
    if total == 0:
        return _interval(float(a.mean() - b.mean()), 0.0)
    df = total**2 / (variances[0] ** 2 / (len(a) - 1) + variances[1] ** 2 / (len(b) - 1))
    return _interval(float(a.mean() - b.mean()), float(stats.t.ppf(0.975, df)) * float(total) ** 0.5)


def _levels(runs: Runs) -> NDArray[np.float64]:
    return np.log([float(np.median(run)) for run in runs])


def _interval(centre: float, reach: float) -> Interval:
    return Interval(value=float(np.exp(centre)), low=float(np.exp(centre - reach)), high=float(np.exp(centre + reach)))
