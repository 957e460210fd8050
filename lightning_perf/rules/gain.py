"""The gain to expect, by Amdahl's law, and findings whose severity follows from it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lightning_perf.records import Confidence, Evidence, Finding, Gain, Method, Prescription, Session, StageTimes

from .severity import severity_of, severity_of_gain
from .signals import is_cpu_run, phase_s

# No fix takes away a whole training; a claim on more than this of the span is cut to it (a gain of 50x).
MAX_RECOVERABLE_SHARE = 0.98

# In these phases a core pauses or does something else for a while. What it computes after that starts with cold caches
# and a lower clock: after 20 ms of sleep steps of up to 10 ms took 0.6 to 3.2 ms longer on a Xeon, on EPYCs 0.2 to
# 1.9 ms, the shortest 4.6 times as long; after as much work of Python's up to 2 ms (docs/benchmarks/cold-start.md).
# Steps with a validation after each few of them became 3.6 ms shorter when a callback was gone that took 30 ms. What
# lies between epochs is longer, and slows down more than the one step that follows: after 0.3 s of sleep or of work on
# other memory the next 16 steps of small models took 1 to 7 ms longer in all. Once the cause is gone, what is left may
# become faster too: by at most this share of it, this long a pause, and half of what the cause took.
PAUSING = ("data_wait", "transfer", "callbacks", "logging", "checkpoint", "epoch_boundary")
COLD_SHARE = 0.7
COLD_S = 4e-3
COLD_EPOCH_S = 8e-3
COLD_PART = 0.5
MOSTLY = 0.5


def gain_from(
    steady: StageTimes, recoverable_low_s: float, recoverable_high_s: float, basis: str, method: Method = "modeled"
) -> Gain:
    """The speed-up of the steady span when part of its wall time goes away.

    Args:
        steady: The span that the seconds belong to.
        recoverable_low_s: Seconds that go away at least; negative counts as 0.
        recoverable_high_s: Seconds that go away at most. They must be exclusive to the cause: time during which
            something else was done meanwhile cannot be won back.
        basis: What the two rest on.
        method: How they came about.

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
        method=method,
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
    method: Method = "modeled",
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
        method: How both came about.
    """
    bounded = {phase: min(seconds, phase_s(steady, phase)) for phase, seconds in claims.items() if seconds > 0}
    high_s = sum(bounded.values())
    gain = gain_from(steady, low_s, high_s, basis, method)
    return Finding(
        code=code,
        name=name,
        category=category,
        severity=severity_of_gain(gain) if method == "replayed" else severity_of(high_s / steady.span_s),
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        gain=gain,
        confidence=confidence,
        claims=bounded,
    )


def warmed_s(rest_s: float, n_pauses: int, paused_s: float, cold_s: float = COLD_S) -> float:
    """Seconds by which steps that took ``rest_s`` in all become shorter at most where so many pauses go away."""
    return min(COLD_SHARE * rest_s, cold_s * n_pauses, COLD_PART * paused_s)


def with_warm_rest(finding: Finding, session: Session) -> Finding:
    """The finding, its gain reaching as far as it does where what is left becomes faster as well.

    Args:
        finding: Of ``session``.
        session: Only where its model computes on the CPU: a device does not cool down while its host does other things.
    """
    steady, gain = session.steady, finding.gain
    paused_s = sum(seconds for phase, seconds in finding.claims.items() if phase in PAUSING)
    is_pause = paused_s > MOSTLY * sum(finding.claims.values())
    if steady is None or gain is None or not is_pause or not is_cpu_run(session) or session.machine.devices:
        return finding
    rest_s = steady.span_s / gain.high
    # Between epochs there is one pause for each; elsewhere there may be one a step.
    is_between_epochs = finding.claims.get("epoch_boundary", 0.0) > MOSTLY * paused_s
    warmed = warmed_s(rest_s, steady.n_steps, paused_s)
    if is_between_epochs:
        n_epochs = max(1, session.run.n_epochs, len(session.epochs))
        warmed = min(warmed, warmed_s(rest_s, n_epochs, paused_s, COLD_EPOCH_S))
    high = steady.span_s / (rest_s - warmed)
    basis = f"{gain.basis}; at best, what follows is faster too"
    return msgspec.structs.replace(finding, gain=msgspec.structs.replace(gain, high=high, basis=basis))


def reaching(finding: Finding, steady: StageTimes, seconds: Mapping[str, float], basis: str) -> Finding:
    """The finding with a gain that reaches further than what it claims.

    For what may go away beside the time that is known to be the cause's. Severity and place go by the claim.

    Args:
        finding: Of that span.
        steady: The span.
        seconds: That go away at most, by phase; cut to what the phase took.
        basis: What the interval rests on then.
    """
    gain = finding.gain
    assert gain is not None
    high_s = sum(min(most_s, phase_s(steady, phase)) for phase, most_s in seconds.items())
    further = gain_from(steady, 0.0, high_s, basis, gain.method)
    return msgspec.structs.replace(
        finding, gain=msgspec.structs.replace(further, low=gain.low, high=max(gain.high, further.high))
    )
