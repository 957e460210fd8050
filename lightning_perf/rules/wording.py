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


def size_text(n_bytes: float) -> str:
    """Bytes in words: ``"1.5 GiB"``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(n_bytes) >= factor:
            return f"{n_bytes / factor:.3g} {unit}"
    return f"{n_bytes:.0f} B"
