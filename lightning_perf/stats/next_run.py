"""Whether one more run is slower than earlier runs of the same training.

How much runs differ is measured by what the mean of the runs before would have missed each earlier run by (recursive
residuals; Brown, Durbin and Evans, J. R. Stat. Soc. B 37, 1975). So a slow drift of the machine counts as noise, and
few earlier runs need a larger difference (Student's t). A new run is shorter than earlier ones: its additional
uncertainty follows from the spread within runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

LAST_RUNS = 5
"""Runs whose mean level the next run is compared with. More would follow a drift less well."""

MIN_RUNS = 3

ALPHA = 0.01
"""Probability of calling a run slower that is not, over all times that it is compared."""

_CLIP = 3 * 1.4826
"""Times the median absolute residual: 3 standard deviations. One earlier run that was disturbed, or an earlier change
of the level, then hides little."""

_MIN_TO_CLIP = 8  # residuals; the median of fewer may be far too low


def alpha_of(look: int) -> float:
    """Return the part of ``ALPHA`` for the n-th comparison of a run, from 0 on: half of what is left."""
    return float(ALPHA / 2 ** (look + 1))


class OneRun(NamedTuple):
    """A run of which only its level counts.

    Attributes:
        log: Natural logarithm of its time per step.
        variance: Variance of ``log``, from the spread within the run; None if it is too short.
        length: Steps or epochs that were measured.
    """

    log: float
    variance: float | None
    length: float


def excess(earlier: Sequence[OneRun], new: OneRun) -> float:
    """Return by how much the log level of a run exceeds the mean of the last ``LAST_RUNS`` before it."""
    return new.log - float(np.mean([one.log for one in earlier[-LAST_RUNS:]]))


def reach(earlier: Sequence[OneRun], new: OneRun, alpha: float) -> float:
    """Return what ``excess`` exceeds with a probability of at most ``alpha`` if nothing changed.

    Args:
        earlier: At least two runs, oldest first.
        new: The run.
        alpha: Probability, one-sided.
    """
    residuals = _residuals([one.log for one in earlier])
    between = float((residuals**2).mean()) * (1 + 1 / min(LAST_RUNS, len(earlier)))
    known = [(one.variance, one.length) for one in earlier if one.variance is not None]
    usual = float(np.mean([variance for variance, _ in known])) if known else 0.0
    scaled = float(np.mean([variance * length for variance, length in known])) / new.length if known else 0.0
    within = max(0.0, max(scaled, new.variance or 0.0) - usual)  # earlier runs' own is in their differences
    t, z = float(stdtrit(len(residuals), 1 - alpha)), float(ndtri(1 - alpha))
    return math.hypot(t * math.sqrt(between), z * math.sqrt(within))


def _residuals(logs: Sequence[float]) -> NDArray[np.float64]:
    """Return what the mean of up to ``LAST_RUNS`` runs before missed each run by, in units of one run's deviation."""
    found = []
    for i in range(1, len(logs)):
        before = logs[max(0, i - LAST_RUNS) : i]
        found.append((logs[i] - sum(before) / len(before)) / math.sqrt(1 + 1 / len(before)))
    residuals = np.array(found)
    if len(residuals) >= _MIN_TO_CLIP:
        limit = _CLIP * float(np.median(np.abs(residuals)))
        residuals = np.clip(residuals, -limit, limit) if limit else residuals
    return residuals
