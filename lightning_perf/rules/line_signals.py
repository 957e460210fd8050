"""What rules say of the lines of the user's code that take time, and what they leave to these lines."""

from __future__ import annotations

import msgspec

from lightning_perf.records import Evidence, Finding, Session, StageTimes

from .gain import gain_from
from .severity import severity_of
from .signals import phase_s
from .user_lines import LineTime, host_s, lines_of
from .wording import percent

# These claim the time of operators. PD303 and PD304 are about what the host does between operators.
_ABOUT_OPERATORS = tuple(f"PD{n}" for n in range(301, 321) if n not in (303, 304, 311, 312, 317, 320))


def line_evidence(session: Session, *phases: str, least: float = 0.02) -> tuple[Evidence, ...]:
    """Return the costliest line of these phases as evidence; nothing where none takes ``least`` of the time.

    Args:
        session: The session.
        phases: By name.
        least: Share of the steady span.
    """
    steady = session.steady
    found = next(iter(lines_of(session, *phases)), None)
    if steady is None or found is None or found.seconds < least * steady.span_s:
        return ()
    return (evidence_of(found, steady),)


def evidence_of(time: LineTime, steady: StageTimes) -> Evidence:
    """Return a line's share of the time as evidence."""
    return Evidence(
        metric=f"time in {time.where}{time.doing}", value=time.seconds / steady.span_s, unit="fraction", n=time.n
    )


def named_line(session: Session, *phases: str, least: float = 0.02) -> str:
    """Return a sentence that names the costliest line of these phases; empty where none takes ``least`` of the time."""
    steady = session.steady
    found = next(iter(lines_of(session, *phases)), None)
    if steady is None or found is None or found.seconds < least * steady.span_s:
        return ""
    return f" {found.where} spends {percent(found.seconds / steady.span_s)} of the time{found.doing}."


def within_operators(finding: Finding, session: Session) -> Finding:
    """Return the finding without the seconds that pass in the user's own lines, if it is about operators.

    Threads, precision and fused operators change what operators take, and nothing else.
    """
    steady = session.steady
    if finding.code not in _ABOUT_OPERATORS or steady is None or not finding.claims:
        return finding
    most_s = {name: max(0.0, phase_s(steady, name) - host_s(session, name)) for name in finding.claims}
    claims = {name: min(seconds, most_s[name]) for name, seconds in finding.claims.items()}
    if claims == finding.claims:
        return finding
    part = sum(claims.values()) / sum(finding.claims.values())
    gain = finding.gain
    if gain is not None:
        # Each end keeps its part of what is left.
        low_s, high_s = (part * steady.span_s * (1 - 1 / end) for end in (gain.low, gain.high))
        gain = gain_from(steady, low_s, high_s, f"{gain.basis}, outside your own lines")
    return msgspec.structs.replace(
        finding, claims=claims, gain=gain, severity=severity_of(sum(claims.values()) / steady.span_s)
    )
