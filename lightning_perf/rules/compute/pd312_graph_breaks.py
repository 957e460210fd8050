"""PD312: a compiled function falls back to Python in the middle."""

from collections.abc import Sequence

from lightning_perf.records import Finding, GraphBreak, Session, TensorLoop
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.step_signals import loop_evidence, loop_finding, loops_of, sampled_steps_of
from lightning_perf.rules.wording import number_of, percent, place_of


@rule("PD312", "graph-breaks", explains=("PD304",))
def check(session: Session) -> Finding | None:
    """Report graph breaks; a speedup is known only if a loop in the same function was timed."""
    watch = required(session.compiler, session.missing.get("compiler", "nothing was compiled"))
    if not watch.graph_breaks:
        return None
    loop = _loop_at_break(session, watch.graph_breaks)
    breaks = (
        watch.graph_breaks if loop is None else sorted(watch.graph_breaks, key=lambda b: not _is_same_function(b, loop))
    )
    first = breaks[0]
    more = len(breaks) - 1
    others = f" and {number_of(more, 'other place')}" if more else ""
    line = place_of(first)
    summary = (
        f"A compiled function falls back to Python at {line}{others}. Reason: {first.reason or 'not given by torch'}."
    )
    evidence = tuple(fact(f"graph break at {place_of(b)}", b.reason or "no reason given") for b in breaks[:5])
    advice = fix(
        f"move the code {f'at {line}' if first.file else 'that breaks the graph'} out of the compiled function",
        "minutes",
        code="torch.compile(model, fullgraph=True)  # raises at each break, with the line",
    )
    if loop is None:
        return make_finding(
            severity="low",  # the cost is unknown, and small in most steps
            summary=summary,
            evidence=evidence,
            prescriptions=advice,
            confidence="medium",
        )
    calls, steady = sampled_steps_of(session)
    return loop_finding(
        steady,
        loop,
        calls,
        summary=f"{summary} Its loop of {loop.repeats} iterations is uncompiled: {percent(loop.share)} of step time.",
        evidence=(loop_evidence(loop, calls), *evidence),
        prescriptions=advice,
    )


def _loop_at_break(session: Session, breaks: Sequence[GraphBreak]) -> TensorLoop | None:
    """Return the costliest loop over a tensor in a function that has a graph break."""
    if session.sync_calls is None or session.steady is None:
        return None
    return next(
        (loop for loop in loops_of(session.sync_calls) if any(_is_same_function(b, loop) for b in breaks)), None
    )


def _is_same_function(graph_break: GraphBreak, loop: TensorLoop) -> bool:
    return graph_break.file == loop.file and loop.first_line <= graph_break.line <= loop.last_line
