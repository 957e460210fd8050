"""When a run has warmed up, and whether it then stays as it is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

AGREEMENT = 0.10
"""Halves whose medians differ by less than this fraction count as the same state."""

_SETTLED_STEPS = 3  # successive usual steps that end the warm-up: one alone can be luck
_MADS = 3.0  # a step within 3 robust standard deviations of the median is usual
_MAD_TO_SIGMA = 1.4826  # of a normal distribution


def warmup_length(step_ns: NDArray[np.int64]) -> int:
    """How many steps at the start are not yet like the later ones.

    The second half of the steps says what is usual (median and median absolute deviation); warm-up ends with the first
    three successive usual steps. The very first step always counts as warm-up, at most half of the steps do.

    Args:
        step_ns: Durations in order, shape (steps,).

    Returns:
        Steps to leave out; 0 only when there are none.
    """
    n = len(step_ns)
    if n < 2:
        return 0
    later = step_ns[n // 2 :]
    median = float(np.median(later))
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(later - median)))
    usual = step_ns <= median + max(_MADS * spread, AGREEMENT * median)
    limit = n // 2
    for start in range(1, limit):
        if usual[start : start + _SETTLED_STEPS].all():
            return start
    return max(1, limit)


def halves_agree(values: NDArray[np.float64]) -> bool:
    """Whether the medians of the first and second half differ by less than ``AGREEMENT``.

    Args:
        values: Positive figures in order of time, shape (n,), n ≥ 2.
    """
    middle = len(values) // 2
    first, second = float(np.median(values[:middle])), float(np.median(values[middle:]))
    return abs(second - first) <= AGREEMENT * max(first, second)
