"""Compare two groups of runs against the noise band, and by an exact permutation test.

The test exchanges runs, never blocks: blocks of one run are correlated, so it would overestimate their evidence.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from lightning_perf.records import Interval

from .estimates import MIN_RUNS, Runs, levels, ratio_interval, welch_margin

Verdict = Literal["improved", "regressed", "no_change", "inconclusive"]

MAX_SAME = 0.05
"""Largest change that may count as none, however wide the noise: 5 % matters to users."""

MAX_MORE = 30
"""Most repeats that are suggested."""

LEVEL = 0.05
"""Significance level of one comparison, two-sided."""

MAX_SPLITS = 50_000
"""Most splits to enumerate, in about 0.1 s: 9 + 9 runs have 48,620."""


class ArmComparison(NamedTuple):
    """One arm against another.

    Attributes:
        verdict: Position of the interval relative to the band.
        speedup: Base step ÷ new step; None with too few runs.
        p_value: Of the exact permutation test; None without runs, or with too many to enumerate.
        repeats_needed: More repeats that would probably settle it; None if settled, or if no number would.
        reason: Why it is inconclusive.
    """

    verdict: Verdict
    speedup: Interval | None
    p_value: float | None
    repeats_needed: int | None
    reason: str


def compare(
    base: Runs, new: Runs, band: float, base_at: Sequence[float] | None = None, new_at: Sequence[float] | None = None
) -> ArmComparison:
    """Compare two arms, given as for ``ratio_interval``; ``band`` is the relative change that counts as none."""
    speedup = ratio_interval(base, new, base_at, new_at)
    if speedup is None:
        needed = repeats_needed(base, new, band)
        return ArmComparison("inconclusive", None, None, needed, f"an interval needs {MIN_RUNS} runs of each arm")
    a, b = levels(base).tolist(), levels(new).tolist()
    p_value = permutation_p(a, b)
    verdict = classify(speedup, band)
    has_power = smallest_p(len(a), len(b)) <= LEVEL
    if verdict in ("improved", "regressed") and has_power and p_value is not None and p_value > LEVEL:
        return ArmComparison(
            "inconclusive", speedup, p_value, 1,
            f"the interval is beyond the noise, but single runs overlap (p {p_value:.2f})",
        )  # fmt: skip
    if verdict != "inconclusive":
        return ArmComparison(verdict, speedup, p_value, None, "")
    needed = repeats_needed(base, new, band)
    return ArmComparison(verdict, speedup, p_value, needed, _why(speedup, band, needed))


def classify(speedup: Interval, band: float) -> Verdict:
    """Return ``improved`` or ``regressed`` beyond the band, ``no_change`` inside, else ``inconclusive``.

    The band is 1/(1 + band) … 1 + band; inside means within ``MAX_SAME`` at most.
    """
    if speedup.low > 1 + band:
        return "improved"
    if speedup.high < 1 / (1 + band):
        return "regressed"
    same = 1 + min(band, MAX_SAME)
    return "no_change" if 1 / same <= speedup.low and speedup.high <= same else "inconclusive"


def repeats_needed(base: Runs, new: Runs, band: float) -> int | None:
    """Return how many more repeats would settle the comparison, if estimate and spread stay the same.

    ``base`` grows as it did so far (twice as fast if it is an A/A pair). At least 1; None if ``MAX_MORE`` are not
    enough: the estimate is at the edge of the band, or in a band wider than ``MAX_SAME``.
    """
    a, b = levels(base), levels(new)
    if len(a) < MIN_RUNS or len(b) < MIN_RUNS:
        return max(1, MIN_RUNS - min(len(a), len(b)))
    center = abs(float(a.mean() - b.mean()))
    room = max(center - math.log1p(band), math.log1p(min(band, MAX_SAME)) - center)
    variance_a, variance_b = float(a.var(ddof=1)), float(b.var(ddof=1))
    growth = max(1, round(len(a) / len(b)))
    for more in range(1, MAX_MORE + 1):
        margin = welch_margin(variance_a, len(a) + growth * more, variance_b, len(b) + more)
        if margin < room:
            return more
    return None


def _why(speedup: Interval, band: float, needed: int | None) -> str:
    if needed is not None:
        return f"about {needed} more {'repeat' if needed == 1 else 'repeats'} would probably settle it"
    noise = f"the noise (±{100 * band:.1f} %)"
    where = "within" if band > MAX_SAME and abs(math.log(speedup.value)) < math.log1p(band) else "too near the edge of"
    return f"{speedup.value:.2f}x is {where} {noise}, so more repeats would not settle it"


def smallest_p(m: int, n: int) -> float:
    """Return the smallest two-sided p-value of m and n runs: 2 / C(m+n, m), at most 1. With 3 and 3 it is 0.1."""
    return min(1.0, 2 / math.comb(m + n, m))


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p-value of the difference of means of two groups, with one value per run.

    It is twice the smaller one-sided value over all splits into groups of these sizes, at most 1. None if a group is
    empty, or with more than ``MAX_SPLITS`` splits.
    """
    m, n = len(a), len(b)
    if m == 0 or n == 0 or math.comb(m + n, m) > MAX_SPLITS:
        return None
    values = np.array([*a, *b], dtype=np.float64)
    values -= values.mean()
    splits = np.fromiter(
        (index for chosen in combinations(range(m + n), m) for index in chosen), dtype=np.intp
    ).reshape(-1, m)
    sums = values[splits].sum(axis=1)
    slack = 1e-9 * float(np.abs(values).sum())  # equal splits must count as equal whatever the order of summing
    below, above = float((sums <= sums[0] + slack).mean()), float((sums >= sums[0] - slack).mean())
    return min(1.0, 2 * min(below, above))
