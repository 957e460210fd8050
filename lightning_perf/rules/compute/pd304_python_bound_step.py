"""PD304: a Python loop of tiny operators takes longer than its arithmetic."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import compile_prescription, fact, fix
from lightning_perf.rules.launch_signals import max_mean_s, tiny_operators
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import CODE_PHASES
from lightning_perf.rules.step_signals import (
    from_trace_or_steps,
    loop_evidence,
    loop_finding,
    loops_of,
    sampled_steps_of,
)
from lightning_perf.rules.thresholds import EXPLAINED_PART, TRACE_MIN_SHARE
from lightning_perf.rules.trace_reading import complete_reading_of
from lightning_perf.rules.wording import percent, place_of


@rule("PD304", "python-bound-step", line_of=("forward", "backward"))
def check(session: Session) -> Finding | None:
    return from_trace_or_steps(session, _from_trace_and_steps, _from_steps)


def _from_trace_and_steps(session: Session) -> Finding | None:
    finding, is_final = _from_trace(session)
    if is_final or session.sync_calls is None:
        return finding
    try:
        loop = _from_steps(session)
    except Skip:
        return finding
    if finding is None or loop is None:
        return finding or loop
    # Report the loop if it explains most of the time of the tiny operators.
    return loop if sum(loop.claims.values()) >= EXPLAINED_PART * sum(finding.claims.values()) else finding


def _from_steps(session: Session) -> Finding | None:
    calls, steady = sampled_steps_of(session)
    loops = loops_of(calls)
    if not loops:
        return None
    worst = loops[0]
    chained = ", each on the result of the one before" if worst.is_recurrence else ""
    return loop_finding(
        steady,
        worst,
        calls,
        summary=(
            f"{percent(worst.share)} of step time is a Python loop over a tensor: {place_of(worst)} runs "
            f"{worst.repeats} iterations per call{chained}, and each operator in it costs a few microseconds of "
            f"overhead{'' if calls.device == 'cpu' else ' while the device waits'}."
        ),
        evidence=(
            loop_evidence(worst, calls),
            *(fact(f"iterations per call at {place_of(loop)}", loop.repeats, "count") for loop in loops[:3]),
            fact("operators per step in the loop", worst.operators_per_step, "count"),
        ),
        prescriptions=_recommendations(session, calls.device == "cpu", bool(worst.is_recurrence)),
    )


def _recommendations(
    session: Session, on_cpu: bool, is_recurrence: bool = False, is_loop: bool = True
) -> tuple[Prescription, ...]:
    if is_recurrence:
        summary = "compute before the loop what needs no earlier iteration; use nn.GRU or nn.LSTM, not their cells"
        code = "inputs = self.input_layer(x)  # for all iterations at once, before the loop"
    elif not is_loop:
        summary = "replace many small operators by few on larger tensors, e.g. on a stack of them"
        code = "x = torch.stack(tensors).mul_(scale)  # instead of one operator for each tensor"
    else:
        summary = "replace the loop by one operation on the whole tensor"
        code = "total = (x * w).sum()  # instead of a sum over rows"
    whole = fix(summary, "minutes", "numerics", code=code)
    return whole, compile_prescription(session, " or this function", has_graphs=not on_cpu)


def _from_trace(session: Session) -> tuple[Finding | None, bool]:
    """Return the finding from the trace, and whether it is final: it names a line or is about a device."""
    reading = complete_reading_of(session)
    trace = reading.trace
    if trace.n_operators == 0 or trace.operator_mean_s is None:
        raise Skip(trace.missing.get("operators", "the trace has no operators"))
    bound_s = max_mean_s(trace)
    found = tiny_operators(session, reading)
    if found is None:
        return None, False
    finding = reading.finding(
        summary=f"{percent(reading.share(found.cost_s))} of the time is spent in tiny operators: {found.summary}.",
        evidence=(
            reading.evidence("time of tiny operators", found.cost_s, TRACE_MIN_SHARE),
            fact("tiny operators in the trace", found.n, "count"),
            fact("mean time per operator", found.mean_s, "s", bound_s, found.n),
        ),
        prescriptions=_recommendations(session, trace.device is None, is_loop=found.is_at_a_line),
        high_s=found.saved_s,
        phases=CODE_PHASES if reading.is_timed and trace.device is None else (),
        basis="at most these operators and the Python code between them",
        confidence="medium",
    )
    return finding, found.is_at_a_line or trace.device is not None
