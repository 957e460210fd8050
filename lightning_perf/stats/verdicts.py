"""What an interval says against the noise band."""

from __future__ import annotations

from typing import Literal

from lightning_perf.records import Interval

Call = Literal["improved", "regressed", "no_change", "inconclusive"]


def call(speedup: Interval | None, band: float) -> Call:
    """``improved`` or ``regressed`` wholly beyond the band, ``no_change`` wholly inside, else ``inconclusive``.

    Args:
        speedup: Old ÷ new step; None where too little was measured.
        band: Relative change that counts as none, > 0.
    """
    if speedup is None:
        return "inconclusive"
    low, high = 1 / (1 + band), 1 + band
    if speedup.low > high:
        return "improved"
    if speedup.high < low:
        return "regressed"
    return "no_change" if low <= speedup.low and speedup.high <= high else "inconclusive"
