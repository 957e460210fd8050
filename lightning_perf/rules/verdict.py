"""The verdict: one line with the most important finding and its recommendation."""

from collections.abc import Sequence

from lightning_perf.records import Finding, Gain, RuleOutcome, Session, TraceRecord, Verdict

from .findings import is_measured
from .loader_curve import predicted_steps
from .signals import steps_text
from .thresholds import EXPLAINED_PART, LATE_MIN_SHARE, LOW_SHARE, MIN_STEPS
from .trace_reading import lacks_device_events
from .wording import headline_of, is_negligible, number_of, percent, speedup

QUALITY = "quality"


def verdict_of(session: Session, findings: Sequence[Finding], outcomes: Sequence[RuleOutcome]) -> Verdict:
    """Return the verdict on a diagnosed session; findings are sorted, best first.

    Returns:
        That memory ran out, if it did; else the first finding above ``info`` that is not about the measurement itself;
        ``healthy`` if there is none; ``unknown`` if too little was measured, unless the run hung, or too few rules ran.
    """
    if ended := _first_of([one for one in findings if one.code == "PD408"]):
        return ended
    n_steps = session.steady.n_steps if session.steady else 0
    if n_steps < MIN_STEPS and predicted_steps(session) is None:  # predicted if only the loader was probed
        if hanging := _first_of([one for one in findings if one.code == "PD609"]):
            return hanging
        few = f"{steps_text(session, n_steps)} in the steady state, at least {MIN_STEPS} are needed"
        reason = session.missing.get("steady", few)
        return Verdict(category="unknown", code=None, text=f"unknown: too little was measured ({reason})")
    return _first_of(findings) or _healthy_of(outcomes)


def trace_verdict_of(record: TraceRecord, findings: Sequence[Finding], outcomes: Sequence[RuleOutcome]) -> Verdict:
    """Return the verdict on a diagnosed trace, as ``verdict_of``.

    It is also ``unknown`` if the trace has too few events, if most of it is start-up, or if no rule explains why its
    device is idle.
    """
    if lacks_device_events(record):
        reason = record.missing.get("device", "the trace has no device events")
        return Verdict(category="unknown", code=None, text=f"unknown: {reason}")
    first = _first_of(findings)
    if first is not None:
        return first
    startup_s = record.critical_path.causes.get("startup", 0.0) if record.critical_path is not None else 0.0
    if record.startup is not None and record.startup.calls and startup_s >= EXPLAINED_PART * record.span_s > 0:
        of = f"{percent(startup_s / record.span_s)} of the trace's time is start-up"
        text = f"unknown: {of}, mostly {record.startup.calls[0].name}; record later steps"
        return Verdict(category="unknown", code=None, text=text)
    idle = _idle_share(record)
    if idle >= LATE_MIN_SHARE:
        text = f"unknown: the device is idle for {percent(idle)} of its time, and no rule explains why"
        return Verdict(category="unknown", code=None, text=text)
    if record.device is not None and not record.steps and record.device.span_s < EXPLAINED_PART * record.span_s:
        outside = percent(1 - record.device.span_s / record.span_s)
        text = f"unknown: {outside} of the trace's time is before the first or after the last device event"
        return Verdict(category="unknown", code=None, text=text)
    if record.device is None and not record.n_operators:
        return Verdict(category="unknown", code=None, text="unknown: the trace has neither operators nor device events")
    return _healthy_of(outcomes)


def _idle_share(record: TraceRecord) -> float:
    """Return the idle share of the steps; without steps, of the time from the first to the last device event."""
    if record.device is None:
        return 0.0
    span_s = record.span_s if record.steps else record.device.span_s
    return max(0.0, 1.0 - record.device.busy_s / span_s) if span_s > 0 else 0.0


def _first_of(findings: Sequence[Finding]) -> Verdict | None:
    worst = next((f for f in findings if f.severity != "info" and f.category != QUALITY), None)
    return None if worst is None else Verdict(category=worst.category, code=worst.code, text=_line(worst))


def _healthy_of(outcomes: Sequence[RuleOutcome]) -> Verdict:
    n_answered = sum(outcome.status in ("finding", "passed") for outcome in outcomes)
    if n_answered == 0:
        return Verdict(category="unknown", code=None, text="unknown: no rule was selected that could be answered")
    n_failed = sum(outcome.status == "failed" for outcome in outcomes)
    failed = f"; {number_of(n_failed, 'rule')} failed" if n_failed else ""
    n_ignored = sum(outcome.status == "ignored" for outcome in outcomes)
    among = f" by the {number_of(len(outcomes) - n_ignored, 'selected rule')}" if n_ignored else ""
    text = f"healthy: no change found{among} that would save {100 * LOW_SHARE:.0f} % or more of the time{failed}"
    return Verdict(category="healthy", code=None, text=text)


def expectation(gain: Gain) -> str:
    """Return the text of a gain, e.g. ``"expect 1.7–2.1x"``; only its upper end if it is modeled."""
    text = speedup(gain)
    if gain.method == "modeled":
        return text
    return f"expect {text}" if "–" in text or "up to" in text else f"expect about {text}"


def _line(finding: Finding) -> str:
    headline = headline_of(finding.summary)
    advice = f": {finding.prescriptions[0].summary.rstrip('.')}" if finding.prescriptions else ""
    notes = [expectation(finding.gain)] if finding.gain is not None and not is_negligible(finding.gain) else []
    notes += [] if is_measured(finding) else ["not measured"]
    return headline + advice + (f" ({', '.join(notes)})" if notes else "")
