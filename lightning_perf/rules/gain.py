"""Expected speedup by Amdahl's law, and findings whose severity follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lightning_perf.records import Confidence, Evidence, Finding, Gain, Method, Prescription, StageTimes

from .parts import unsigned_finding
from .severity import severity_of_gain
from .signals import phase_s
from .thresholds import MAX_RECOVERABLE_SHARE

WHY_NOT_MEASURED = "why the speedup was not measured"
"""Metric of the evidence that gives the reason, in a finding without a gain."""

AT_STAKE = "share of the time that the fix acts on"
"""The metric of the evidence by which findings without a gain are compared."""


def gain_from(
    steady: StageTimes, recoverable_low_s: float, recoverable_high_s: float, basis: str, method: Method = "modeled"
) -> Gain:
    """Return the speedup of the steady span if part of its wall time is saved.

    Args:
        steady: The span that the seconds refer to.
        recoverable_low_s: Seconds saved at least; negative values count as 0.
        recoverable_high_s: Seconds saved at most, without time that overlaps with other work.
        basis: Source of both values.
        method: How both values were obtained.

    Returns:
        Old wall time ÷ new wall time, an interval with 1 ≤ low ≤ high.
    """
    high = min(max(recoverable_high_s, 0.0) / steady.span_s, MAX_RECOVERABLE_SHARE)
    low = min(max(recoverable_low_s, 0.0) / steady.span_s, high)
    return Gain(low=1 / (1 - low), high=1 / (1 - high), basis=basis, method=method)


def timed_finding(
    steady: StageTimes,
    *,
    summary: str,
    evidence: tuple[Evidence, ...],
    prescriptions: tuple[Prescription, ...],
    claims: Mapping[str, float],
    basis: str,
    low_s: float = 0.0,
    confidence: Confidence = "high",
    method: Method = "timed",
) -> Finding:
    """Return a finding whose gain and severity follow from the seconds that a fix saves.

    Args:
        steady: The span that the seconds refer to.
        summary: Text of the finding; its first sentence is the headline of a verdict.
        evidence: Evidence of the finding.
        prescriptions: Recommendations, best first.
        claims: Seconds saved at most, by phase; limited to the time of the phase.
        low_s: Seconds saved at least; they determine the severity.
        basis: Source of both values.
        confidence: Confidence in the diagnosis.
        method: How both values were obtained; ``modeled`` if the effect of the fix was neither timed nor tried.
    """
    bounded = {phase: min(seconds, phase_s(steady, phase)) for phase, seconds in claims.items() if seconds > 0}
    high_s = sum(bounded.values())
    gain = gain_from(steady, low_s, high_s, basis, method)
    return unsigned_finding(severity_of_gain(gain), summary, evidence, prescriptions, confidence, bounded, gain)


def with_measurement(finding: Finding) -> Finding:
    """Return a finding with the command that measures its gain, if the gain is not certain; else the finding unchanged.

    Recommendations that may change results are then not applied by ``Session.trainer_flags`` and ``loader_args``.
    """
    if finding.gain is None or is_measured(finding):
        return finding
    return msgspec.structs.replace(
        finding,
        summary=f"{finding.summary} {how_to_measure(finding.prescriptions)}",
        prescriptions=tuple(unapplied(one) if one.safety != "exact" else one for one in finding.prescriptions),
    )


def is_measured(finding: Finding) -> bool:
    """Return whether some speedup of a finding is certain; True for severity ``info``, which expects none."""
    gain = finding.gain
    if finding.severity == "info":
        return True
    if gain is None:
        return not any(one.metric == WHY_NOT_MEASURED for one in finding.evidence)
    return gain.method != "modeled" and (gain.low > 1.0 or gain.method not in ("timed", "probed"))


def how_to_measure(prescriptions: Sequence[Prescription]) -> str:
    """Return a sentence stating that the speedup was not measured, with the command that measures it."""
    treatment = prescriptions[0].treatment if prescriptions else ""
    if treatment:
        command = f"lightning-perf trial --try {treatment} -- python train.py"
    else:
        command = "lightning-perf compare BEFORE AFTER (sessions of a run without and with the change)"
    return f"The speedup was not measured; measure it: {command}."


def unapplied(prescription: Prescription) -> Prescription:
    """Return a recommendation without the arguments that would be applied automatically."""
    return msgspec.structs.replace(prescription, trainer_flags={}, loader_args={})
