"""PD304: a Python loop of tiny operators takes longer than the arithmetic in it."""

from __future__ import annotations

from typing import NamedTuple

from lightning_perf.records import CodeSite, Evidence, Finding, Prescription, Session, TensorLoop
from lightning_perf.rules.gain import reaching, timed_finding
from lightning_perf.rules.host_signals import claims_within, looked_at, steps_s, where
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.severity import LOW_SHARE
from lightning_perf.rules.signals import phase_s
from lightning_perf.rules.trace_signals import (
    CODE_PHASES,
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
    windows_of,
)
from lightning_perf.rules.wording import duration, percent

CODE = "PD304"
NAME = "python-bound-step"
CATEGORY = "compute"

MIN_OPERATORS = 1_000
MAX_MEAN_S = 10e-6
# Recording Python stacks makes each tiny operator several times as long.
MAX_MEAN_WITH_STACKS_S = 40e-6
# As often as this within one call of a function, it is a loop (torch's pattern matcher says the same of indexing).
MIN_REPEATS = 10
# As for PD202: from 5 % on it decides something.
MIN_SHARE = 0.05
# A loop that was seen as one, at its line, needs no such margin: it is worth a word from where gains show at all.
MIN_LOOP_SHARE = LOW_SHARE
# What looking at each operator costs is taken out of the loop's time, at times too much of it: twice to three times as
# long was measured without looking. Its backward pass can be all there is of one (measured: nine tenths).
LOOKING_FACTOR = 3.0
BACKWARD_FRACTION = 0.95

DOCS = """\
## What it measures
In a profiler window: more than a thousand operators a step of less than 10 us each, or one operator called ten times
and more within one call of a function (only with recorded stacks). What counts is their cost: on a CPU the time of
these operators and of the Python between them, on a device the time that it was idle because of late launches.

Without such a finding, the loops over a tensor's rows or elements that a few sampled steps were seen to run, ten
rounds and more within one call of a function: with the line that takes the elements, and the share of the step from
the first round to the last.

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
    """Looks for a loop in the code, else for many tiny operators; without either, for a loop in the steps looked at."""
    try:
        finding = _from_trace(session)
    except Skip as skip:
        if session.sync_calls is None:
            raise
        reason = str(skip)
    else:
        if finding is not None or session.sync_calls is None or session.steady is None:
            return finding
        reason = ""
    try:
        return _live(session)
    except Skip as skip:
        raise Skip("; ".join(filter(None, [reason, str(skip)]))) from None


def _live(session: Session) -> Finding | None:
    calls, steady = looked_at(session)
    loops = [loop for loop in calls.loops if loop.repeats >= MIN_REPEATS and loop.share >= MIN_LOOP_SHARE]
    if not loops:
        return None
    worst = loops[0]
    # The rounds are one operation then. Their backward pass, which is not in the share, goes with them: if the loop is
    # differentiated, in proportion to its part of the forward pass.
    in_forward_s = worst.share * (1 - 1 / worst.repeats) * steps_s(steady)
    forward_s, backward_s = phase_s(steady, "forward"), phase_s(steady, "backward")
    saved_s = in_forward_s + (min(1.0, in_forward_s / forward_s) * backward_s if forward_s > 0 else 0.0)
    most_s = {"forward": LOOKING_FACTOR * in_forward_s, "backward": BACKWARD_FRACTION * backward_s}
    basis = "at most three times the loop as timed in the steps looked at, and nearly all of backward"
    finding = timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(worst.share)} of a step is a Python loop over a tensor: {_place(worst)} takes it apart in "
            f"{worst.repeats} rounds. Each round costs some operators of a few microseconds, whatever they compute"
            f"{'' if calls.device == 'cpu' else ', and the device waits for each of them'}."
        ),
        evidence=(
            Evidence(
                metric="loop in the time of a step",
                value=worst.share,
                unit="fraction",
                threshold=MIN_LOOP_SHARE,
                n=calls.n_steps,
            ),
            *(Evidence(metric=f"rounds at {_place(loop)}", value=loop.repeats, unit="count") for loop in loops[:3]),
            Evidence(metric="operators that the function calls a step", value=worst.operators_per_step, unit="count"),
        ),
        prescriptions=_prescriptions(),
        claims=claims_within(steady, saved_s, CODE_PHASES),
        low_s=0.0,
        basis=basis,
        confidence="medium",
    )
    return reaching(finding, steady, most_s, basis)


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


def _from_trace(session: Session) -> Finding | None:
    reading = reading_of(session)
    trace = reading.trace
    if is_blind(trace):
        raise Skip(trace.missing.get("device", "the trace does not show what the device did"))
    if trace.n_operators == 0 or trace.operator_mean_s is None:
        raise Skip(trace.missing.get("operators", "the trace holds no operators"))
    bound_s = MAX_MEAN_WITH_STACKS_S if trace.has_stacks else MAX_MEAN_S
    found = _in_a_loop(reading, bound_s) or _in_general(reading, bound_s)
    if found is None or reading.share(found.cost_s) < MIN_SHARE:
        return None
    return trace_finding(
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
        basis="at most the operators and the Python between them, but for one pass",
        confidence="medium",
    )


def _in_a_loop(reading: Reading, bound_s: float) -> _Loop | None:
    """The costliest function that repeats a tiny operator."""
    trace = reading.trace
    loops = [
        site
        for site in trace.code_sites
        if site.max_repeats >= MIN_REPEATS and site.host_s <= bound_s * site.n_operators
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


def _in_general(reading: Reading, bound_s: float) -> _Loop | None:
    trace = reading.trace
    mean_s = trace.operator_mean_s or 0.0
    n = trace.n_operators
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
    between_s = sum(step.categories.get("other", 0.0) for step in windows_of(trace))
    return min(host_s + part * between_s, code_limit_s(reading))


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
