"""Records of traced steps: lines that synchronize, loops over tensors, attention written out."""

from collections import Counter

import msgspec

from lightning_perf.records import AttentionCall, SyncCall, SyncCalls, TensorLoop

from .code_lines import USER, SourceLine, loop_lines
from .function_calls import MIN_REPEATS, FunctionCall
from .operator_tracer import OperatorTracer, Sync
from .written_attention import Attention

_MAX_SITES = 32
_MAX_LOOPS = 8
_INDEXING = frozenset({"select", "slice", "index", "unbind", "_local_scalar_dense", "index_select", "gather"})
_RECURRENCE_CHAIN = 0.75  # operators that an iteration adds to a chain, at least
_MANY_ITERATIONS = 3  # a chain as long as this many mean iterations is not within one, even if iterations grow
_UNSEEN_BACKWARD = "a device's backward pass runs in a separate thread without user code on its stack"


def sync_calls(
    tracers: list[OperatorTracer], device: str, warned: dict[SourceLine, int] | None = None
) -> SyncCalls | None:
    """Return the record of traced steps; None before the first.

    ``warned`` counts the device's own warnings by line, in one step; None if they were not requested.
    """
    tracers = [tracer for tracer in tracers if not tracer.failure]
    if not tracers:
        return None
    n = len(tracers)
    step_s = sum(tracer.step_s() for tracer in tracers) / n
    return SyncCalls(
        n_steps=n,
        step_s=step_s,
        device=device,
        calls=_calls(tracers, warned or {}),
        loops=_loops(tracers),
        attentions=_attentions(tracers, device),
        operators_per_step=sum(tracer.lines.n_operators for tracer in tracers) / n,
        unseen={} if device == "cpu" else {"backward": _UNSEEN_BACKWARD},
    )


def _calls(tracers: list[OperatorTracer], warned: dict[SourceLine, int]) -> tuple[SyncCall, ...]:
    n, n_syncs, sync_ns = len(tracers), Counter[Sync](), Counter[Sync]()
    for tracer in tracers:
        n_syncs.update(tracer.n_syncs)
        sync_ns.update(tracer.sync_ns)
    calls = [
        SyncCall(
            operator=label,
            per_step=count / n,
            cost_s=sync_ns[place, label, phase] / 1e9 / n,
            owner=place.owner,  # type: ignore[arg-type]
            phase=phase,
            **place.fields(),
        )
        for (place, label, phase), count in n_syncs.items()
    ]
    known = {(call.file, call.line) for call in calls}
    calls += [
        SyncCall(
            operator="synchronizes",
            per_step=float(count),
            owner=place.owner,  # type: ignore[arg-type]
            source="device",
            **place.fields(),
        )
        for place, count in warned.items()
        if (place.file, place.line) not in known
    ]
    return tuple(sorted(calls, key=lambda call: (call.owner != USER, -call.per_step))[:_MAX_SITES])


def _loops(tracers: list[OperatorTracer]) -> tuple[TensorLoop, ...]:
    found: dict[tuple[str, int, str], list[TensorLoop]] = {}
    for tracer in tracers:
        for call in tracer.lines.loops():
            loop = _loop(tracer, call)
            if loop is not None:
                found.setdefault((loop.file, loop.line, loop.phase), []).append(loop)
    means = [_mean(loops, len(tracers)) for loops in found.values()]
    return tuple(sorted(means, key=lambda loop: -loop.cost_s)[:_MAX_LOOPS])


def _loop(tracer: OperatorTracer, call: FunctionCall) -> TensorLoop | None:
    """Return the loop of a call that unpacks a tensor; None if it repeats something else."""
    repeated = [v for v in call.hits.values() if v.n >= MIN_REPEATS]
    taking = [v for v in repeated if v.operator in _INDEXING]
    if taking:
        named = max(taking, key=lambda v: v.n)
    elif call.n_unbound >= MIN_REPEATS:
        unbinding = [v for v in call.hits.values() if v.operator == "unbind"]
        if call.is_iterated and not repeated:
            repeated = [v for v in call.hits.values() if v.n_operators >= MIN_REPEATS]
        if not repeated or not unbinding:
            return None
        named = unbinding[0]
    else:
        return None
    longest = max(repeated, key=tracer.loop_s)
    spent_s = tracer.loop_s(longest)
    instruction = next(at for at, hits in call.hits.items() if hits is longest)
    begin_ns = min(v.first.ns for v in taking or repeated)
    end_ns = max(v.last.ns for v in taking or repeated)
    within = [v for v in call.hits.values() if v.last.ns > begin_ns and v.first.ns < end_ns]
    n_iterations = min((v.n for v in taking), default=call.n_unbound)
    n_operators, added = sum(v.n_operators for v in within), max(v.longest_chain - v.first_chain for v in within)
    # A loop over growing prefixes has long chains, too, but each of them is within one iteration.
    is_recurrence = added >= max(_RECURRENCE_CHAIN * (n_iterations - 1), _MANY_ITERATIONS * n_operators / n_iterations)
    return TensorLoop(
        file=call.code.co_filename,
        line=named.line,
        function=call.code.co_name,
        operator=named.operator,
        repeats=max(named.n, call.n_unbound),
        operators_per_step=n_operators,
        is_recurrence=is_recurrence,
        iterations_per_step=n_iterations,
        cost_s=spent_s,
        share=min(1.0, spent_s / tracer.step_s()),
        phase=named.phase,
        code=SourceLine(USER, call.code.co_filename, named.line, "").text(),
        first_line=call.code.co_firstlineno,
        last_line=max((line for *_, line in call.code.co_lines() if line is not None), default=0),
        lines=loop_lines(call.code, instruction),
    )


def _mean(loops: list[TensorLoop], n: int) -> TensorLoop:
    """Return the loops of one line as one, per step of ``n`` steps."""
    return msgspec.structs.replace(
        loops[0],
        repeats=max(loop.repeats for loop in loops),
        operators_per_step=sum(loop.operators_per_step for loop in loops) / n,
        iterations_per_step=sum(loop.iterations_per_step or 0 for loop in loops) / n,
        cost_s=sum(loop.cost_s for loop in loops) / n,
        is_recurrence=any(loop.is_recurrence for loop in loops),
        share=min(1.0, sum(loop.share for loop in loops) / n),
    )


def _attentions(tracers: list[OperatorTracer], device: str) -> tuple[AttentionCall, ...]:
    n = len(tracers)
    found: dict[SourceLine, list[tuple[OperatorTracer, Attention]]] = {}
    for tracer in tracers:
        for place, attention in tracer.attention.found.items():
            found.setdefault(place, []).append((tracer, attention))
    is_host = device == "cpu"
    calls = []
    for place, pairs in found.items():
        first = pairs[0][1]
        spent = [(tracer.attention.seconds(one), tracer.step_s()) for tracer, one in pairs]
        calls.append(
            AttentionCall(
                per_step=sum(one.n for _, one in pairs) / n,
                rows=first.rows,
                columns=first.columns,
                cost_s=sum(s for s, _ in spent) / n if is_host else None,
                share=min(1.0, sum(s / step_s for s, step_s in spent) / n) if is_host else None,
                via=first.via,
                fallback=first.fallback,
                **place.fields(),
            )
        )
    return tuple(sorted(calls, key=lambda call: -(call.cost_s or call.per_step))[:_MAX_LOOPS])
