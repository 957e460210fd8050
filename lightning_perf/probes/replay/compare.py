"""Times pieces of work as they are and under a treatment, in turns, until the ratio is known or time is up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from statistics import fmean, median, stdev
from typing import Any, NamedTuple, Protocol

from scipy.special import stdtrit

from lightning_perf.records import Interval

from .watch import Stopwatch

MIN_ROUNDS = 3
"""Pairs of passes before an interval is computed: two leave Student's t at 12.7 standard errors."""

MAX_ROUNDS = 60
HALF_WIDTH = 0.05
"""Relative half width of the interval at which it is narrow enough."""

HOPELESS = 3.0
"""A treatment whose first pass takes this many times as long as all work as it is, is not timed to its end."""


SHORT_S = 0.01
"""Below this, allocating and choosing a kernel may take most of an operator's first run."""


class Item(Protocol):
    """A piece of work of the step.

    Attributes:
        weight: Times that a step does it.
    """

    weight: float

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Do the work once; return pairs of marks around each timed part."""


class Comparison(NamedTuple):
    """What the rounds gave.

    Attributes:
        before_s: Seconds per step as it is.
        after_s: Seconds per step with the treatment.
        n_rounds: Pairs of passes.
        speedup: None where there were too few rounds.
        reason: Why there is no speedup; empty otherwise.
    """

    before_s: float | None
    after_s: float | None
    n_rounds: int
    speedup: Interval | None
    reason: str = ""


def compare(
    items: Sequence[Item],
    treated: Callable[[], AbstractContextManager[Any]],
    watch: Stopwatch,
    limit_s: float,
    now_ns: Callable[[], int],
) -> Comparison:
    """Compare all items as they are with all items under a treatment.

    Args:
        items: The work, largest first.
        treated: Makes the context of a pass with the treatment.
        watch: Times each item.
        limit_s: The time that there is.
        now_ns: The host's clock.

    Returns:
        Medians of the passes, and Student's interval of the logarithm of their ratios by pair.
    """
    until = now_ns() + round(limit_s * 1e9)
    before, after = _Passes(items, watch), _Passes(items, watch)
    if not before.run(False, until, now_ns, is_first=True):
        return Comparison(
            None, None, 0, None, f"one pass over the operators takes longer than the {limit_s:.1f} s left"
        )
    with treated():
        is_whole = after.run(True, until, now_ns, most_s=HOPELESS * before.last_s, is_first=True)
    if not is_whole:
        as_is, slower = before.last_s, after.last_s
        if slower <= as_is:
            return Comparison(as_is, None, 0, None, f"not decided within {limit_s:.1f} s")
        bound = as_is / slower
        return Comparison(as_is, slower, 0, Interval(value=bound, low=0.0, high=bound))
    before.forget()
    after.forget()
    return _rounds(before, after, treated, until, now_ns, limit_s)


def _rounds(
    before: _Passes,
    after: _Passes,
    treated: Callable[[], AbstractContextManager[Any]],
    until: int,
    now_ns: Callable[[], int],
    limit_s: float,
) -> Comparison:
    logs: list[float] = []
    found: Interval | None = None
    while len(logs) < MAX_ROUNDS and now_ns() < until:
        is_whole = True
        for is_treated in (False, True) if len(logs) % 2 == 0 else (True, False):  # A B B A
            if not is_treated:
                is_whole &= before.run(False, until, now_ns)
            else:
                with treated():
                    is_whole &= after.run(True, until, now_ns)
        if not is_whole:
            break
        logs.append(math.log(before.last_s / after.last_s))
        found = interval_of(logs)
        if found is not None and (found.high < 1.0 or found.high / found.low < (1 + HALF_WIDTH) ** 2):
            break
    if found is None:
        return Comparison(None, None, len(logs), None, f"{len(logs)} rounds within {limit_s:.1f} s: too few to decide")
    return Comparison(before.per_step_s(len(logs)), after.per_step_s(len(logs)), len(logs), found)


def interval_of(logs: Sequence[float]) -> Interval | None:
    """Return the ratio with its 95 % interval, from logarithms of single ratios; None from too few.

    Single passes may be long because something else had the core, so the highest and lowest fifth are trimmed: the
    interval of a trimmed mean (Tukey and McLaughlin, Sankhya 25, 1963).
    """
    n = len(logs)
    if n < MIN_ROUNDS:
        return None
    n_cut = n // 5
    ordered = sorted(logs)
    kept = ordered[n_cut : n - n_cut]
    winsorized = [kept[0]] * n_cut + kept + [kept[-1]] * n_cut
    error = stdev(winsorized) / ((1 - 2 * n_cut / n) * math.sqrt(n))
    centre, reach = fmean(kept), float(stdtrit(len(kept) - 1, 0.975)) * error
    return Interval(value=math.exp(centre), low=math.exp(centre - reach), high=math.exp(centre + reach))


class _Passes:
    """Passes over all items on one side."""

    def __init__(self, items: Sequence[Item], watch: Stopwatch) -> None:
        self._items, self._watch = items, watch
        self._times: list[list[float]] = [[] for _ in items]
        self.last_s = 0.0

    def run(
        self,
        is_treated: bool,
        until: int,
        now_ns: Callable[[], int],
        most_s: float = math.inf,
        is_first: bool = False,
    ) -> bool:
        """Run all items; in the first pass short ones twice, since the first time allocates and tunes.

        Returns:
            False where the time was up, or the sum above ``most_s``, before the last item.
        """
        self.last_s = 0.0
        for place, (item, times) in enumerate(zip(self._items, self._times, strict=True)):
            seconds = self._timed(item, is_treated)
            if is_first and seconds < SHORT_S:
                seconds = self._timed(item, is_treated)
            times.append(seconds)
            self.last_s += item.weight * times[-1]
            if (now_ns() > until or self.last_s > most_s) and place + 1 < len(self._items):
                return False
        return self.last_s <= most_s and self.last_s > 0

    def _timed(self, item: Item, is_treated: bool) -> float:
        return sum(self._watch.seconds(*pair) for pair in item.run(is_treated, self._watch))

    def forget(self) -> None:
        for times in self._times:
            times.clear()

    def per_step_s(self, n_rounds: int) -> float:
        """Seconds per step: for each item the median of the rounds."""
        pairs = zip(self._items, self._times, strict=True)
        return sum(item.weight * median(times[:n_rounds]) for item, times in pairs)
