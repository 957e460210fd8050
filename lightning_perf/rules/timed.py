"""Findings whose gain follows from timed work and the part of it that remains after the recommended change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_perf.records import Confidence, Evidence, Finding, Prescription, StageTimes
from lightning_perf.stats.estimates import mean_interval
from lightning_perf.stats.steady import AGREEMENT

from .gain import timed_finding
from .wording import duration, percent

SPREAD = AGREEMENT
"""Uncertainty of a time: halves of a run that differ by less count as equally fast."""


def removal_finding(
    steady: StageTimes,
    *,
    summary: str,
    evidence: tuple[Evidence, ...],
    prescriptions: tuple[Prescription, ...],
    timed: Mapping[str, float],
    left: float,
    left_least: float | None = None,
    confidence: Confidence = "high",
) -> Finding:
    """Return a finding whose first recommendation removes a known part of timed work.

    Args:
        steady: The steady steps.
        summary: Text of the finding; its first sentence is the headline of a verdict.
        evidence: Evidence of the finding.
        prescriptions: Recommendations, best first.
        timed: Seconds of the steady span in the work that the change affects, by phase.
        left: Fraction of it that remains at most.
        left_least: Fraction of it that remains at least; None for ``left``.
        confidence: Confidence in the diagnosis.
    """
    least = left if left_least is None else left_least
    total_s = sum(timed.values())
    basis = f"{duration(total_s)} timed; {_remains(left, least)}"
    return timed_finding(
        steady,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims={phase: (1 - least) * seconds for phase, seconds in timed.items()},
        low_s=(1 - SPREAD) * (1 - left) * total_s,
        basis=basis,
        confidence=confidence,
    )


def least_mean(values: Sequence[float]) -> float:
    """Return the lower end of the 95 % interval of the mean; 0 for fewer than two values."""
    found = mean_interval(values)
    return 0.0 if found is None else max(0.0, found.low)


def _remains(left: float, least: float) -> str:
    if left <= 0:
        return "none of it remains"
    if left >= 1:
        return "how much of it remains is not known"
    return f"{percent(left)} of it remains" if least == left else f"at most {percent(left)} of it remains"
