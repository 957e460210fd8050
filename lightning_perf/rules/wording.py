"""How rules write figures in their sentences."""

from __future__ import annotations


def percent(fraction: float) -> str:
    """A fraction as percent: ``"54 %"``, ``"3.2 %"`` below ten."""
    value = 100 * fraction
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def duration(seconds: float) -> str:
    """A time in the unit that fits it: ``"320 us"``, ``"12.5 ms"``, ``"3.2 s"``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
