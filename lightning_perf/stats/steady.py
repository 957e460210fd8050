"""The warm-up of a run, and whether the run is steady afterwards."""

import numpy as np
from numpy.typing import NDArray

AGREEMENT = 0.10
"""Relative difference of medians below which two halves count as equal."""

_SETTLED_STEPS = 3  # successive usual steps that end the warm-up: a single one may be chance
_MADS = 3.0  # a step within 3 robust standard deviations of the median is usual
MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution ÷ its median absolute deviation."""


def warmup_length(step_ns: NDArray[np.int64]) -> int:
    """Return how many steps at the start are warm-up: at least one, at most half of them.

    The second half of the steps defines a usual step (median and median absolute deviation); warm-up ends with the
    first three successive usual steps. ``step_ns`` has shape (steps,).
    """
    n = len(step_ns)
    if n < 2:
        return 0
    later = step_ns[n // 2 :]
    median = float(np.median(later))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(later - median)))
    usual = step_ns <= median + max(_MADS * spread, AGREEMENT * median)
    limit = n // 2
    for start in range(1, limit):
        if usual[start : start + _SETTLED_STEPS].all():
            return start
    return max(1, limit)


def halves_agree(values: NDArray[np.float64]) -> bool:
    """Return whether the medians of the halves of at least two positive values differ by less than ``AGREEMENT``."""
    middle = len(values) // 2
    first, second = float(np.median(values[:middle])), float(np.median(values[middle:]))
    return abs(second - first) <= AGREEMENT * max(first, second)
