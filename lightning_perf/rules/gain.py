"""The gain to expect, by Amdahl's law, and findings whose severity follows from it."""

from __future__ import annotations

from collections.abc import Mapping

from lightning_perf.records import Confidence, Evidence, Finding, Gain, Prescription, StageTimes

from .severity import severity_of

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


def timed_finding(
    steady: StageTimes,
    *,
    code: str,
    name: str,
    category: str,
    summary: str,
    evidence: tuple[Evidence, ...],
    prescriptions: tuple[Prescription, ...],
    claims: Mapping[str, float],
    low_s: float,
    basis: str,
    confidence: Confidence = "high",
) -> Finding:
    """A finding whose severity and gain follow from the seconds that a fix could win back.

    Args:
        steady: The span.
        code: The rule's code.
        name: The rule's name.
        category: The rule's category.
        summary: Its first sentence is the headline of a verdict.
        evidence: The facts.
        prescriptions: Best first.
        claims: Seconds won back at most, by phase; cut to what the phase took.
        low_s: Seconds won back at least.
        basis: What both rest on.
        confidence: Of the diagnosis itself.
    """
    bounded = {phase: min(seconds, _total_s(steady, phase)) for phase, seconds in claims.items() if seconds > 0}
    high_s = sum(bounded.values())
    return Finding(
        code=code,
        name=name,
        category=category,
        severity=severity_of(high_s / steady.span_s),
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        gain=gain_from(steady, low_s, high_s, basis),
        confidence=confidence,
        claims=bounded,
    )


def _total_s(steady: StageTimes, phase: str) -> float:
    return steady.phases[phase].total_s if phase in steady.phases else 0.0
