"""How bad a finding is: one table, from the share of wall time that a fix could win back."""

from __future__ import annotations

from lightning_perf.records import Gain, Severity

# From 10 % and 20 % waiting for input TraceML speaks of a warning and of a critical state. 2 % is what a
# measurement of a few hundred steps can tell from noise; what lies below is shown, but is nothing to act on.
HIGH_SHARE = 0.20
MEDIUM_SHARE = 0.10
LOW_SHARE = 0.02

NARROW = 1.5
"""Upper ÷ lower end of a gain up to which its middle stands for it."""


def severity_of(recoverable_share: float) -> Severity:
    """The severity of what could be won back.

    Args:
        recoverable_share: Seconds of the steady span that a fix could win back at most ÷ the span, 0…1.
    """
    if recoverable_share >= HIGH_SHARE:
        return "high"
    if recoverable_share >= MEDIUM_SHARE:
        return "medium"
    return "low" if recoverable_share >= LOW_SHARE else "info"


def certain_speedup(gain: Gain) -> float:
    """Return the part of a gain to go by: its lower end, or the middle of an interval that is narrow."""
    return (gain.low + gain.high) / 2 if gain.high <= NARROW * gain.low else gain.low


def severity_of_gain(gain: Gain) -> Severity:
    """Return the severity by what is certain of a gain; ``low`` where only its upper end is worth acting on."""
    certain = severity_of(1 - 1 / certain_speedup(gain))
    is_possible = severity_of(1 - 1 / gain.high) != "info"
    return "low" if certain == "info" and is_possible else certain
