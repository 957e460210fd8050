"""The gain to expect, by Amdahl's law."""

from __future__ import annotations

from lightning_perf.records import Gain, StageTimes

# No fix takes away a whole training; a claim on more than this of the span is cut to it (a gain of 50x).
MAX_RECOVERABLE_SHARE = 0.98


def gain_from(steady: StageTimes, recoverable_low_s: float, recoverable_high_s: float, basis: str) -> Gain:
    """The speed-up of the steady span when part of its wall time goes away.

    Args:
        steady: The span that the seconds belong to.
        recoverable_low_s: Seconds that go away at least; negative counts as 0.
        recoverable_high_s: Seconds that go away at most. They must be exclusive to the cause: time during which
            something else was done meanwhile cannot be won back.
        basis: What the two rest on.

    Returns:
        Old wall time ÷ new wall time, an interval with 1 ≤ low ≤ high.
    """
    limit_s = MAX_RECOVERABLE_SHARE * steady.span_s
    high_s = min(max(recoverable_high_s, 0.0), limit_s)
    low_s = min(max(recoverable_low_s, 0.0), high_s)
    return Gain(
        low=steady.span_s / (steady.span_s - low_s),
        high=steady.span_s / (steady.span_s - high_s),
        basis=basis,
    )
