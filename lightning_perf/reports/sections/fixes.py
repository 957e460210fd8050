"""The ranked fixes: what to change, the speedup, and the effort."""

from collections.abc import Sequence

from lightning_perf.records import Arm, Finding, Interval, Prescription, Session
from lightning_perf.reports.cells import Column, Heads, Rows, Value
from lightning_perf.reports.document import Table, table
from lightning_perf.reports.fixes import alternatives, fix_groups, fix_text, tried_by_autopilot
from lightning_perf.reports.wording import certainty, gain, interval_text, line, times

_WIDE, _WIDEST = 72, 100
_MAX_LENGTH = 120
"""Longest text of a fix."""


def fixes_table(session: Session) -> Table:
    """Return one row per cause, the best fix first, with the speedup a trial measured or else the expected one."""
    rows: Rows = []
    for group in fix_groups(session):
        first, fix = group[0], group[0].prescriptions[0]
        other = alternatives(group, session, _MAX_LENGTH)
        text = fix_text(fix, session, _MAX_LENGTH) + (f"; {other}" if other else "")
        rows.append(
            (line(first.code, 16), line(first.name, 60), text, speedup_of(session, first), fix.effort, certainty(first))
        )
    heads: Heads = (
        "rule",
        Column("finding", _WIDEST),
        "fix",
        "speedup",
        Column("effort", _WIDE),
        Column("diagnosis", _WIDE),
    )
    return table(heads, rows, key="fixes")


def speedup_of(session: Session, finding: Finding) -> Value:
    """Return the speedup measured for the finding's first fix; else the expected speedup."""
    found, _ = _measured(session, finding.prescriptions[0])
    if found is not None:
        return Value(f"{times(found.value)} measured ({interval_text(found)})", found.value)
    return Value(gain(finding.gain), finding.gain.low if finding.gain is not None else None)


def measured_speedup(session: Session, finding: Finding) -> str:
    """Return the speedup measured for the finding's first fix, "1.8x measured"; empty if that is inconclusive."""
    found, is_conclusive = _measured(session, finding.prescriptions[0])
    if found is None or not is_conclusive:
        return ""
    return f"{found.value:.{1 if found.value >= 1.5 else 2}f}x measured"


def _measured(session: Session, fix: Prescription) -> tuple[Interval | None, bool]:
    """Return the speedup of a fix alone in the latest trial, else in the autopilot, and whether it is conclusive."""
    arms: Sequence[Arm] = [arm for trial in reversed(session.trials) for arm in trial.arms]
    name = fix.treatment.partition("=")[0]
    tried = (arm for arm in arms if name and [each.partition("=")[0] for each in arm.treatments] == [name])
    for arm in tried:
        if arm.speedup is not None:
            return arm.speedup, arm.verdict != "inconclusive"
    one = tried_by_autopilot(fix, session)
    return (None, False) if one is None else (one.speedup, one.status == "kept" or one.gains_nothing)
