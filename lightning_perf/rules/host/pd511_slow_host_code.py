"""PD511: a line of user code takes a share of the step outside torch operators."""

import builtins

from lightning_perf.records import STEP_PHASES, Finding, Session
from lightning_perf.rules.findings import fix, timed_finding
from lightning_perf.rules.line_signals import evidence_of
from lightning_perf.rules.remedies import remedy_for
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.step_signals import is_within, loops_of
from lightning_perf.rules.thresholds import (
    EXPLAINED_PART,
    HOST_LINE_MIN_STEP_S,
    LINES_SHOWN,
    LOW_SHARE,
    USER_LINE_MIN_SHARE,
)
from lightning_perf.rules.user_lines import (
    LineTime,
    check_is_sampled,
    is_collecting,
    is_logging,
    is_metric,
    lines_of,
    records_stacks,
    sampler_lines,
    whole_call_of,
)
from lightning_perf.rules.wording import duration, percent

# Callbacks, loggers, schedulers and datasets have rules of their own, which name the line too.
PHASES = ("transfer", "forward", "backward", "optimizer", "other")


_BUILT_IN = frozenset(dir(builtins))


@rule("PD511", "slow-host-code", is_host_time=True)
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    check_is_sampled(session)
    least_s = USER_LINE_MIN_SHARE * phase_s(steady, *STEP_PHASES)
    found = [
        time
        for time in (*lines_of(session, *PHASES), *sampler_lines(session))
        if time.seconds >= least_s and not _is_no_cause(session, time)
    ]
    found.sort(key=lambda time: -time.seconds)
    if not found or found[0].low_s < LOW_SHARE * steady.span_s:
        return None
    inner = found[0]
    around = whole_call_of(session, inner)
    worst = inner if around is None or _is_no_cause(session, around) else around
    part = f" {percent(inner.seconds / worst.seconds)} of it is {inner.where}{inner.doing}." if worst != inner else ""
    each_s, share = worst.seconds / steady.n_span_steps, worst.seconds / phase_s(steady, *STEP_PHASES)
    is_model = worst.line.call == "forward"
    work = "the work of this line" if is_model or not worst.line.call else worst.line.call
    if worst.line.called_at and (worst.line.call in _BUILT_IN or worst.line.call.endswith("__")):
        work = worst.line.function  # says more than min, or an iterator's __next__
    if worst.line.operator_fraction > EXPLAINED_PART:  # these are the training itself
        work = f"what {work} does besides torch operators"
    remedy = remedy_for(inner.line.call, inner.line.code)
    if worst.phase == "data_wait":
        one_call = f"draw all indices of an epoch in one call instead of calling {work} for each"
        summary = f"{remedy} ({work})" if remedy else one_call
    else:
        summary = f"move {work} out of the step, or do it less often{f'; otherwise, {remedy}' if remedy else ''}"
    return timed_finding(
        steady,
        summary=(
            f"{worst.subject} spends {percent(share)} of step time{worst.doing}: "
            f"{duration(each_s)} per step{_where(worst)}.{part}"
        ),
        evidence=(evidence_of(time, steady) for time in ([worst] * (worst != inner) + found)[:LINES_SHOWN]),
        prescriptions=fix(
            summary,
            "minutes",
            code=f"# now, at {worst.line.file}:{worst.line.line}\n{worst.line.code}" if worst.line.code else "",
        ),
        claims={worst.phase: worst.high_s},
        low_s=worst.low_s,
        basis=f"the time of this line, from {worst.n} stack samples",
        confidence="high" if steady.step_s.mean >= HOST_LINE_MIN_STEP_S else "medium",
    )


def _where(time: LineTime) -> str:
    """Return the phase, with the function that Lightning called if it is not the line's own."""
    if time.phase == "data_wait":
        return ", drawing the indices of samples"
    is_known = time.line.called_at or time.line.entry in ("", time.line.function)
    called_by = "" if is_known else f", called by {time.line.entry}"
    return f" outside torch operators, in {time.phase}{called_by}"


def _is_no_cause(session: Session, time: LineTime) -> bool:
    """Return whether another rule covers the line, or it calls a library's model, which is the training itself.

    Rules cover loops over tensors, garbage collections, metrics, logging and anomaly detection.
    """
    line = time.line
    loops = loops_of(session.sync_calls) if session.sync_calls is not None else []
    in_loop = any(is_within(loop, line) for loop in loops)
    is_model = line.call.endswith((".forward", ".__call__")) and line.operator_fraction > EXPLAINED_PART
    return (
        is_model
        or in_loop
        or is_collecting(session, line)
        or is_metric(line)
        or is_logging(line)
        or records_stacks(session, line)
    )
