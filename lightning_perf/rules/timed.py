"""Findings about time that was timed by itself: what remains of it after the recommended change."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lightning_perf.records import Confidence, Evidence, Finding, Prescription, Session, StageTimes

from .gain import gain_from, timed_finding, warmed_s
from .signals import is_cpu_run
from .wording import duration, percent

SPREAD = 0.1
"""Halves of a run count as equally fast up to this difference (``stats.steady.AGREEMENT``): a time may be off by it."""

WARM_SHARE = 0.2
"""Other work between two steps made steps of 0.6 to 32 ms up to 21 % longer (docs/benchmarks/cold-start.md): as much of
the rest may go away with it. Sleep costs more, but rarely stands alone in these phases."""

NOTICED_SHARE = 0.01

MANY = 10
"""Work done this many times less often leaves a tenth: the most that is promised where the user picks the interval."""


def removal_finding(
    session: Session,
    steady: StageTimes,
    *,
    code: str,
    name: str,
    category: str,
    summary: str,
    evidence: tuple[Evidence, ...],
    prescriptions: tuple[Prescription, ...],
    timed: Mapping[str, float],
    left: float,
    left_least: float | None = None,
    n_pauses: float | None = None,
    confidence: Confidence = "high",
) -> Finding:
    """Return a finding whose gain is timed work that the first prescription leaves a known part of.

    Args:
        session: The session.
        steady: Its steady steps.
        code: The rule's code.
        name: The rule's name.
        category: The rule's category.
        summary: Its first sentence is the headline of a verdict.
        evidence: The facts.
        prescriptions: Best first.
        timed: Seconds of the steady span in what the change concerns, by phase.
        left: Part of it that remains at most, 0 to 1.
        left_least: Part that remains at least; None for ``left``.
        n_pauses: How many times the work interrupted the steps; None for once per step.
        confidence: Of the diagnosis itself.
    """
    least = left if left_least is None else left_least
    total_s = sum(timed.values())
    basis = f"{duration(total_s)} timed; {_remains(left, least)}"
    finding = timed_finding(
        steady,
        code=code,
        name=name,
        category=category,
        summary=summary,
        evidence=evidence,
        prescriptions=prescriptions,
        claims={phase: (1 - least) * seconds for phase, seconds in timed.items()},
        low_s=(1 - SPREAD) * (1 - left) * total_s,
        basis=basis,
        confidence=confidence,
        method="timed",
    )
    gone_s = sum(finding.claims.values())
    warm_s = _warm_s(session, steady, gone_s, steady.n_steps if n_pauses is None else n_pauses)
    if warm_s < NOTICED_SHARE * steady.span_s or finding.gain is None:
        return finding
    further = gain_from(steady, 0.0, gone_s + warm_s, f"{basis}; steps after it may get faster", "timed")
    return msgspec.structs.replace(finding, gain=msgspec.structs.replace(further, low=finding.gain.low))


def _warm_s(session: Session, steady: StageTimes, gone_s: float, n_pauses: float) -> float:
    """Seconds by which the rest becomes shorter at most: a device does not cool down while its host is busy."""
    if not is_cpu_run(session) or session.machine.devices:
        return 0.0
    rest_s = steady.span_s - gone_s
    return min(WARM_SHARE * rest_s, warmed_s(rest_s, round(n_pauses), gone_s))


def _remains(left: float, least: float) -> str:
    if left <= 0:
        return "all of it goes away"
    if left >= 1:
        return "how much of it remains is not known"
    return f"{percent(left)} of it remains" if least == left else f"at most {percent(left)} of it remains"
