"""Severity of a finding: one table, by the share of wall time that a fix certainly saves."""

from __future__ import annotations

from lightning_perf.records import Gain, Severity

# From 10 % and 20 % waiting for input TraceML speaks of a warning and of a critical state. 2 % is what a
# measurement of a few hundred steps can tell from noise; what lies below is shown, but is nothing to act on.
HIGH_SHARE = 0.20
MEDIUM_SHARE = 0.10
LOW_SHARE = 0.02

NARROW = 1.5
"""Ratio of what a fix saves at most to what it saves at least, up to which the middle of the interval is certain."""


def severity_of(share: float) -> Severity:
    """Return the severity of a share of the steady span, 0…1, that a fix saves."""
    if share >= HIGH_SHARE:
        return "high"
    if share >= MEDIUM_SHARE:
        return "medium"
    return "low" if share >= LOW_SHARE else "info"


def certain_speedup(gain: Gain) -> float:
    """Return the speedup that is certain: the lower end, or the middle of a narrow interval; 1 if only modeled.

    An interval that begins at no gain worth acting on is not narrow, however close its ends: nothing is certain of it.
    """
    if gain.method == "modeled":
        return 1.0
    certain = 1 - 1 / gain.low
    is_narrow = possible_share(gain) <= NARROW * certain and severity_of(certain) != "info"
    return (gain.low + gain.high) / 2 if is_narrow else gain.low


def possible_share(gain: Gain) -> float:
    """Return the share of the steady span that the fix saves at most."""
    return 1 - 1 / gain.high


def severity_of_gain(gain: Gain) -> Severity:
    """Return the severity by the speedup that is certain; ``low`` where only the upper end is worth acting on."""
    certain = severity_of(1 - 1 / certain_speedup(gain))
    is_possible = severity_of(possible_share(gain)) != "info"
    return "low" if certain == "info" and is_possible else certain
