"""Severity of a finding, by the share of wall time that a fix saves with certainty."""

from __future__ import annotations

from lightning_perf.records import Gain, Severity

from .thresholds import HIGH_SHARE, LOW_SHARE, MEDIUM_SHARE, NARROW_RATIO


def severity_of(share: float) -> Severity:
    """Return the severity of a fix that saves this share of the steady span, from 0 to 1."""
    if share >= HIGH_SHARE:
        return "high"
    if share >= MEDIUM_SHARE:
        return "medium"
    return "low" if share >= LOW_SHARE else "info"


def certain_speedup(gain: Gain) -> float:
    """Return the speedup that is certain: the lower end, or the middle of a narrow interval; 1 if only modeled.

    An interval whose lower end is negligible does not count as narrow.
    """
    if gain.method == "modeled":
        return 1.0
    certain = 1 - 1 / gain.low
    is_narrow = possible_share(gain) <= NARROW_RATIO * certain and severity_of(certain) != "info"
    return (gain.low + gain.high) / 2 if is_narrow else gain.low


def possible_share(gain: Gain) -> float:
    """Return the largest share of the steady span that the fix may save."""
    return 1 - 1 / gain.high


def severity_of_gain(gain: Gain) -> Severity:
    """Return the severity by the certain speedup; ``low`` if only the upper end is worth acting on."""
    certain = severity_of(1 - 1 / certain_speedup(gain))
    is_possible = severity_of(possible_share(gain)) != "info"
    return "low" if certain == "info" and is_possible else certain
