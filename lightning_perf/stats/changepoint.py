"""Find one change of level in a series."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from .steady import MAD_TO_SIGMA

MIN_SEGMENT = 4
"""Fewest points on each side."""

MIN_MADS = 3.0
"""The levels must differ by more than this many robust standard deviations of the points around them."""

LEVEL = 0.01
"""Highest probability that a series without a change looks like this."""


class ChangePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The first point of a new level, the medians before it and from it on."""

    index: int
    before: float
    after: float


class LevelWatch:
    """Detector of a change of level by ``factor`` that lasts for two checks: other programs slow steps temporarily."""

    def __init__(self, factor: float) -> None:
        self.level: float | None = None
        self._factor = factor
        self._was_different = False

    def restart(self, level: float | None) -> None:
        """Compare with this level from now on; with none if it is unknown."""
        self.level, self._was_different = level, False

    def has_changed(self, level: float | None) -> bool:
        """Return whether the level differs at this check and did at the one before."""
        before = self.level
        is_different = bool(level and before and max(level / before, before / level) >= self._factor)
        is_lasting, self._was_different = is_different and self._was_different, is_different
        return is_lasting


def find_change(values: Sequence[float]) -> ChangePoint | None:
    """Find one change of level by ranks, so that single spikes count for little; None without one.

    Pettitt's test (A. N. Pettitt, Applied Statistics 28, 1979): the split with the largest rank statistic, with
    p ≈ 2 exp(-6 K² / (n³ + n²)). Neighboring points of a training are correlated, which makes that p too small; so the
    medians must also differ by more than ``MIN_MADS`` robust standard deviations of the residuals from the two levels
    or from a straight line, whichever fits better. A slow rise is therefore found as one step in its middle. A change
    with only a few points before or after it is not found: about 16 points are needed in all.
    """
    series = np.asarray(values, dtype=np.float64)
    n = len(series)
    if n < 2 * MIN_SEGMENT or not np.isfinite(series).all():
        return None
    signs = np.sign(series[None, :] - series[:, None]).sum(axis=0)
    statistic = np.abs(np.cumsum(signs))[MIN_SEGMENT - 1 : n - MIN_SEGMENT]
    index = int(np.argmax(statistic)) + MIN_SEGMENT
    k = float(statistic[index - MIN_SEGMENT])
    p_value = min(1.0, 2.0 * math.exp(-6.0 * k * k / (n**3 + n**2)))
    before, after = float(np.median(series[:index])), float(np.median(series[index:]))
    residuals = np.concatenate([series[:index] - before, series[index:] - after])
    places = np.arange(n)
    slanted = series - np.polyval(np.polyfit(places, series, 1), places)
    slanted -= np.median(slanted)
    sigma = MAD_TO_SIGMA * min(float(np.median(np.abs(each))) for each in (residuals, slanted))
    if p_value > LEVEL or abs(after - before) <= MIN_MADS * sigma:
        return None
    return ChangePoint(index=index, before=before, after=after)
