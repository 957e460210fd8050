"""Decide from alternating blocks of one run whether a change makes it faster; valid at any number of blocks.

Blocks come in pairs, one without and one with the change. Two neighboring pairs are ordered A B B A or B A A B, at
random: a steady drift cancels, and no periodic change in the training can favor one side. Each pair gives the logarithm
of a speedup. The interval of their mean is computed after each pair; with a probability of 95 %, all of these intervals
contain the true value, so that the autopilot may stop after any pair: the t-test's mixture martingale (T. L. Lai,
Annals of Statistics 4, 1976; H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means
with unknown variance", 2023, https://arxiv.org/abs/2310.03722).
"""

import math
import random
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Literal

from lightning_perf.records import LEAST_GAIN, Interval

from .estimates import log_interval

Verdict = Literal["kept", "undone"]

ERROR = 0.05
"""Probability that any of the intervals computed during the run misses the true speedup."""

MIN_VALUES, MAX_VALUES = 3, 40
"""Values before the first decision, and at the last one."""

PRIOR_VARIANCE = 10.0
"""Prior variance of the effect, in units of the variance of a value. The interval is valid for any choice. With this
one, the first intervals are narrowest if effects are about three times the noise: 10 % with blocks that vary by 3 %."""

_LIKELY_ERRORS = 2.0  # standard errors above the mean: effects up to there are likely


class BlockTrial:
    """The blocks of one change.

    Args:
        rng: Random generator that draws the order of blocks.
        pairs_per_value: Pairs whose mean is one value: 2 for neighboring blocks, because the middle of A B B A is two
            blocks of one arm, whose noise two pairs would share; 1 for blocks as long as an epoch.
        max_values: Values after which the change is undone unless it is kept.

    Attributes:
        logs: Logarithm of the speedup of each pair.
        lost_s_per_step: Sum over all pairs of the treated block's mean minus the other's.
    """

    def __init__(self, rng: random.Random, pairs_per_value: int = 2, max_values: int = MAX_VALUES) -> None:
        self._rng, self._pairs_per_value, self._max_values = rng, pairs_per_value, max_values
        self._order: list[bool] = []
        self._first_s: float | None = None  # of the pair under way
        self.logs: list[float] = []
        self.lost_s_per_step = 0.0

    @property
    def is_next_treated(self) -> bool:
        """Whether the next block is one with the change."""
        if not self._order:
            first = self._rng.random() < 0.5
            self._order = [first, not first, not first, first]
        return self._order[0]

    def add(self, mean_s: float | None) -> None:
        """Add the mean step of the next block; None if nothing was measured in it, which repeats its pair."""
        is_treated, is_second = self.is_next_treated, len(self._order) % 2 == 1
        if mean_s is None or mean_s <= 0:
            if is_second:
                self._order = [not is_treated, *self._order]
            return
        self._order = self._order[1:]
        if not is_second:
            self._first_s = mean_s
        elif self._first_s is not None:
            base, treated = (self._first_s, mean_s) if is_treated else (mean_s, self._first_s)
            self.logs.append(math.log(base / treated))
            self.lost_s_per_step += treated - base

    @property
    def _values(self) -> list[float]:
        n = self._pairs_per_value
        return [fmean(self.logs[i : i + n]) for i in range(0, len(self.logs) - n + 1, n)]

    def speedup(self) -> Interval | None:
        """Return the speedup with its interval; None before enough pairs."""
        values = self._values
        if len(values) < MIN_VALUES:
            return None
        return log_interval(fmean(values), _margin(len(values), math.sqrt(variance(values))))

    def verdict(self) -> Verdict | None:
        """Return what the pairs so far decide; None if more are needed."""
        values, found = self._values, self.speedup()
        if found is None:
            return None
        if found.low > LEAST_GAIN:
            return "kept"
        if found.high < LEAST_GAIN or len(values) >= self._max_values or self._is_futile(values):
            return "undone"
        return None

    def _is_futile(self, values: list[float]) -> bool:
        """Return whether even the largest likely effect would not be certain at the last value."""
        deviation = math.sqrt(variance(values))
        hopeful = fmean(values) + _LIKELY_ERRORS * deviation / math.sqrt(len(values))
        return hopeful - _margin(self._max_values, deviation) < math.log(LEAST_GAIN)


def _margin(n: int, deviation: float) -> float:
    """Return half the width of the interval of the mean of n values with this standard deviation."""
    # With x = t²/(n-1) and r = 1 + n·PRIOR_VARIANCE, the Bayes factor against a mean is below 1/ERROR where
    # (1 + x) / (1 + x/r) < (√r / ERROR)^(2/n).
    ratio = 1 + n * PRIOR_VARIANCE
    limit = (math.sqrt(ratio) / ERROR) ** (2 / n)
    if limit >= ratio:
        return math.inf
    return math.sqrt((limit - 1) / (1 - limit / ratio) * (n - 1) / n) * deviation


def combined_speedup(gains: Sequence[Interval]) -> Interval | None:
    """Return the product of independent speedups, with its interval; None without any."""
    if not gains:
        return None
    center = sum(math.log(one.value) for one in gains)
    low, high = (
        math.sqrt(sum(math.log(getattr(one, end) / one.value) ** 2 for one in gains)) for end in ("low", "high")
    )
    return Interval(value=math.exp(center), low=math.exp(center - low), high=math.exp(center + high))
