"""The change that counts as none, from two halves of one arm."""

from __future__ import annotations

from lightning_perf.records import Interval

MIN_BAND = 0.01
"""Below 1 % a machine that does other things too differs from itself."""

MAX_BAND = 0.05
"""More is a change that matters to its user: where the halves may differ by more, an arm is inconclusive, never the
same."""


def noise_band(aa: Interval | None) -> float:
    """The relative change that counts as none: as far as the interval of the A/A pair reaches, from 1 % to 5 %.

    The pair's true ratio is 1, so its interval shows what this machine cannot tell apart with so many runs.

    Args:
        aa: Ratio of the two halves; None where it was not measured, which gives 1 %.
    """
    if aa is None:
        return MIN_BAND
    return min(MAX_BAND, max(MIN_BAND, aa.high - 1, 1 / aa.low - 1))
