"""PD304: a Python loop of tiny operators takes longer than the arithmetic in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from lightning_perf.records import CodeSite, Evidence, Finding, Prescription, Session, TensorLoop
from lightning_perf.rules.host_signals import (
    MIN_REPEATS,
    is_computing,
    looked_at,
    loop_evidence,
    loop_finding,
    loops_of,
    where,
)
from lightning_perf.rules.rule import EXPLAINED_SHARE, Rule, Skip
from lightning_perf.rules.trace_signals import (
    Reading,
    code_limit_s,
    code_phases,
    compile_prescription,
    idle_limit_s,
    is_blind,
    launching_s,
    place,
    reading_of,
    share_evidence,
    trace_finding,
)
from lightning_perf.rules.wording import duration, percent

CODE = "PD304"
NAME = "python-bound-step"
CATEGORY = "compute"

MIN_OPERATORS = 1_000
MAX_MEAN_S = 10e-6
# Recording Python stacks makes each tiny operator several times as long.
MAX_MEAN_WITH_STACKS_S = 40e-6
# As for PD202: from 5 % on it decides something.
MIN_SHARE = 0.05

DOCS = """\
## What it measures
In a profiler window: more than a thousand operators a step of less than 10 us each, or one operator called ten times
and more within one call of a function (only with recorded stacks). What counts is their cost: on a CPU the time of
these operators and of the Python between them, on a device the time that it was idle because of late launches.

Where that names no line, the loops over a tensor's rows or elements that a few sampled steps were seen to run, ten
rounds and more within one call of a function: with the line that takes the elements, and the share of the step from
the first round to the last. On a CPU such a line is told instead of the mere count, if it is at least half of it.
A loop in a callback, or where data is made, is left to the rules that price those.

## Why it costs
Python and torch's dispatcher need some microseconds for each operator, whatever it computes. One operator over a whole
tensor needs them once.

## Example
```python
for i in range(x.shape[0]):          # one row at a time
    total = total + (x[i] * w).sum()
```

## Prescription
Write it as one operation over the whole tensor; where that cannot be, `torch.compile` the function.

## When it is wrong
Loops whose iterations depend on one another may not be vectorised. The profiler's own cost is part of each tiny
operator: without it the loop is shorter, the order of things stays.

## Sources
torch's `_pattern_matcher` (indexing in a loop); the case study on launch overhead; the lecture on vectorising.
"""


class _Loop(NamedTuple):
    """What runs as tiny operators.

    Attributes:
        cost_s: Seconds of the trace that it costs.
        saved_s: Of these, what vectorising could save at most.
        summary: Its sentence.
        mean_s: Mean operator.
        n: Operators.
    """

    cost_s: float
    saved_s: float
    summary: str
    mean_s: float
    n: int


def check(session: Session) -> Finding | None:
    """Looks for a loop in the trace, else in the steps looked at, unless that is little of many tiny operators."""
    reason = ""
    try:
        finding, is_exact = _from_trace(session)
    except Skip as skip:
        if session.sync_calls is None:
            raise
        finding, is_exact, reason = None, False, str(skip)
    if is_exact or session.sync_calls is None:
        return finding
    try:
        loop = _live(session)
    except Skip as skip:
        if not reason:
            return finding
        raise Skip(f"{reason}; {skip}") from None
    return loop if finding is None or (loop is not None and _explains(loop, finding)) else finding


def _live(session: Session) -> Finding | None:
    calls, steady = looked_at(session)
    loops = loops_of(calls)
    if not loops:
        return None
    worst = loops[0]
    return loop_finding(
        steady,
        worst,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(worst.share)} of a step is a Python loop over a tensor: {_place(worst)} takes it apart in "
            f"{worst.repeats} rounds. Each round costs some operators of a few microseconds, whatever they compute"
            f"{'' if calls.device == 'cpu' else ', and the device waits for each of them'}."
        ),
        evidence=(
            loop_evidence(worst, calls),
            *(Evidence(metric=f"rounds at {_place(loop)}", value=loop.repeats, unit="count") for loop in loops[:3]),
            Evidence(metric="operators that the function calls a step", value=worst.operators_per_step, unit="count"),
        ),
        prescriptions=_prescriptions(),
    )


def _explains(loop: Finding, finding: Finding) -> bool:
    """Whether a loop is most of what a count of operators found."""
    return sum(loop.claims.values()) >= EXPLAINED_SHARE * sum(finding.claims.values())


def _place(loop: TensorLoop) -> str:
    return where(loop.file, loop.line, loop.function)


def _prescriptions() -> tuple[Prescription, ...]:
    return (
        Prescription(
            treatment="",
            summary="write the loop as one operation over the whole tensor",
            safety="numerics",
            effort="minutes",
            code="total = (x * w).sum()  # instead of a sum over rows",
        ),
        compile_prescription(" or this function"),
    )


def _from_trace(session: Session) -> tuple[Finding | None, bool]:
    """What the trace says, and whether steps looked at say no more: it names a line, or what a device waits for."""
    reading = reading_of(session)
    trace = reading.trace
    if is_blind(trace):
        raise Skip(trace.missing.get("device", "the trace does not show what the device did"))
    if trace.n_operators == 0 or trace.operator_mean_s is None:
        raise Skip(trace.missing.get("operators", "the trace holds no operators"))
    bound_s = MAX_MEAN_WITH_STACKS_S if trace.has_stacks else MAX_MEAN_S
    others = [one for one in session.sync_calls.loops if not is_computing(one)] if session.sync_calls else []
    loop = _in_a_loop(reading, bound_s, others)
    found = loop or _in_general(reading, bound_s, others)
    if found is None or reading.share(found.cost_s) < MIN_SHARE:
        return None, False
    finding = trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=f"{percent(reading.share(found.cost_s))} of the time goes to tiny operators. {found.summary}.",
        evidence=(
            share_evidence(reading, "cost of tiny operators", found.cost_s, MIN_SHARE),
            Evidence(metric="operators in the window", value=found.n, unit="count"),
            Evidence(metric="mean operator", value=found.mean_s, unit="s", threshold=bound_s, n=found.n),
        ),
        prescriptions=_prescriptions(),
        low_s=0.0,
        high_s=found.saved_s,
        phases=code_phases(reading) if trace.device is None else (),
        method="timed",
        basis="at most the operators and the Python between them, but for one pass",
        confidence="medium",
    )
    return finding, loop is not None or trace.device is not None


def _in_a_loop(reading: Reading, bound_s: float, others: Sequence[TensorLoop]) -> _Loop | None:
    """The costliest function that repeats a tiny operator, but for those of other rules' loops."""
    named = {f"{os.path.basename(loop.file)}:{loop.first_line}" for loop in others}
    trace = reading.trace
    loops = [
        site
        for site in trace.code_sites
        if site.max_repeats >= MIN_REPEATS
        and site.host_s <= bound_s * site.n_operators
        and os.path.basename(site.site) not in named
    ]
    if not loops:
        return None
    site = max(loops, key=lambda site: _cost_s(reading, site.n_operators, site.host_s))
    cost_s = _cost_s(reading, site.n_operators, site.host_s)
    return _Loop(
        cost_s,
        cost_s * (1 - 1 / site.max_repeats),
        f"{place(site.site, site.function)} calls {site.top_operator} up to {site.max_repeats} times in a loop, "
        f"{_operators(reading, site)}",
        site.host_s / site.n_operators,
        site.n_operators,
    )


def _operators(reading: Reading, site: CodeSite) -> str:
    n = site.n_operators / reading.n_steps
    what = f"{n:.0f} operators " + ("a step" if reading.trace.steps else "in all")
    return f"{what} of {duration(site.host_s / site.n_operators)} each"


def _in_general(reading: Reading, bound_s: float, others: Sequence[TensorLoop]) -> _Loop | None:
    trace = reading.trace
    mean_s = trace.operator_mean_s or 0.0
    n = trace.n_operators - round(reading.n_steps * sum(loop.operators_per_step for loop in others))
    if n <= MIN_OPERATORS * reading.n_steps or mean_s >= bound_s:
        return None
    cost_s = _cost_s(reading, n, n * mean_s)
    count = f"{n / reading.n_steps:.0f} operators {'a step' if trace.steps else 'in the trace'}"
    hint = "" if trace.has_stacks else '; with_stack=True in PerfDoctor(profiler={"with_stack": True}) would tell where'
    return _Loop(
        cost_s,
        cost_s * (1 - MIN_OPERATORS * reading.n_steps / n),
        f"{count} of {duration(mean_s)} each{hint}",
        mean_s,
        n,
    )


def _cost_s(reading: Reading, n_operators: int, host_s: float) -> float:
    """On a device, its idle time; on a CPU, the operators and their part of the time between operators."""
    trace = reading.trace
    part = n_operators / trace.n_operators
    if trace.device is not None:
        return min(launching_s(trace), idle_limit_s(reading)) * part
    between_s = sum(step.categories.get("other", 0.0) for step in trace.windows)
    return min(host_s + part * between_s, code_limit_s(reading))


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
