"""An exact permutation test of two groups of runs, and the level that so few runs can reach at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

MAX_SPLITS = 100_000
"""Splits that are enumerated; 10 + 10 runs have 184,756."""


def smallest_p(m: int, n: int) -> float:
    """The smallest two-sided p-value that m and n runs can give: 2 / C(m+n, m)."""
    return min(1.0, 2 / math.comb(m + n, m))


def can_reach(m: int, n: int, level: float) -> bool:
    """Whether m and n runs can show a difference at ``level`` at all."""
    return smallest_p(m, n) <= level


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p-value of the difference of means, over every way to split the values into groups of these sizes."""
    m, n = len(a), len(b)
    if m == 0 or n == 0 or math.comb(m + n, m) > MAX_SPLITS:
        return None
    values = np.array([*a, *b], dtype=np.float64)
    sums = np.array([values[list(chosen)].sum() for chosen in combinations(range(m + n), m)])
    slack = 1e-12 * float(np.abs(values).sum())
    below, above = float((sums <= sums[0] + slack).mean()), float((sums >= sums[0] - slack).mean())
    return min(1.0, 2 * min(below, above))
