"""How bad a finding is: one table, from the share of wall time that a fix could win back."""

from __future__ import annotations

from lightning_perf.records import Severity

# From 10 % and 20 % waiting for input TraceML speaks of a warning and of a critical state. 2 % is what a
# measurement of a few hundred steps can tell from noise; what lies below is shown, but is nothing to act on.
HIGH_SHARE = 0.20
MEDIUM_SHARE = 0.10
LOW_SHARE = 0.02


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
