"""The cost of late launches and tiny operators in a trace, and their place in the code."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from lightning_perf.records import CodeSite, Session, TensorLoop, TraceRecord

from .kernel_signals import launching_s, path_of
from .signals import COMPUTE_PHASES
from .step_signals import is_computing
from .thresholds import (
    LATE_MIN_SHARE,
    LOOP_MIN_REPEATS,
    SHORT_KERNEL_S,
    TINY_MAX_S,
    TINY_MAX_WITH_STACKS_S,
    TINY_MIN_OPERATORS,
    TRACE_MIN_SHARE,
)
from .trace_reading import Reading
from .wording import duration, place


class TinyOperators(NamedTuple):
    """Operators too small to be worth their overhead.

    Attributes:
        cost_s: Seconds of the trace that they cost.
        saved_s: Seconds of ``cost_s`` that vectorizing saves at most.
        summary: Description for the finding.
        mean_s: Mean seconds per operator.
        n: Number of operators.
        is_at_a_line: Whether they are a loop in a known function.
    """

    cost_s: float
    saved_s: float
    summary: str
    mean_s: float
    n: int
    is_at_a_line: bool = False


def is_launch_bound(reading: Reading, late_s: float) -> bool:
    """Return whether late launches of this many seconds limit the step, and kernels are short."""
    trace = reading.trace
    median_s = trace.kernels.median_s if trace.kernels is not None else None
    is_short = median_s is not None and median_s < SHORT_KERNEL_S
    return is_short and late_s >= LATE_MIN_SHARE * trace.span_s


def late_place(trace: TraceRecord) -> str:
    """Return the place in the code whose late launch the device waited for longest; empty if not known."""
    late = path_of(trace).late
    return place(late[0].function, late[0].site) if late else ""


def max_mean_s(trace: TraceRecord) -> float:
    """Return the mean time below which operators count as tiny."""
    return TINY_MAX_WITH_STACKS_S if trace.has_stacks else TINY_MAX_S


def tiny_operators(session: Session, reading: Reading) -> TinyOperators | None:
    """Return the costliest loop of tiny operators, or else all tiny operators; None if they cost little.

    If the trace is launch-bound, all tiny operators together are reported by PD303 instead.
    """
    others = [one for one in session.sync_calls.loops if not is_computing(one)] if session.sync_calls else []
    trace = reading.trace
    found = _costliest_loop(reading, others)
    if found is None and (trace.device is None or not is_launch_bound(reading, launching_s(trace))):
        found = _all_tiny_operators(reading, others)
    return found if found is not None and reading.share(found.cost_s) >= TRACE_MIN_SHARE else None


def _costliest_loop(reading: Reading, others: Sequence[TensorLoop]) -> TinyOperators | None:
    """Return the costliest function that repeats a tiny operator, without loops that other rules report."""
    named = {f"{os.path.basename(loop.file)}:{loop.first_line}" for loop in others}
    trace = reading.trace
    loops = [
        site
        for site in trace.code_sites
        if site.max_repeats >= LOOP_MIN_REPEATS
        and site.host_s <= max_mean_s(trace) * site.n_operators
        and os.path.basename(site.site) not in named
    ]
    if not loops:
        return None
    costs_s = [_cost_s(reading, one.n_operators, one.host_s, one) for one in loops]
    cost_s, site = max(zip(costs_s, loops, strict=True), key=lambda pair: pair[0])
    n, mean_s = site.n_operators / reading.n_steps, site.host_s / site.n_operators
    return TinyOperators(
        cost_s,
        cost_s * (1 - 1 / site.max_repeats),
        f"{place(site.function, site.site)} calls {site.top_operator} up to {site.max_repeats} times in a loop, "
        f"{n:.0f} operators {'per step' if trace.steps else 'in total'} of {duration(mean_s)} each",
        mean_s,
        site.n_operators,
        is_at_a_line=True,
    )


def _all_tiny_operators(reading: Reading, others: Sequence[TensorLoop]) -> TinyOperators | None:
    trace = reading.trace
    mean_s = trace.operator_mean_s or 0.0
    counts = [phase.n_operators for phase in trace.phases if phase.name in COMPUTE_PHASES]
    n = trace.n_operators
    if counts and None not in counts:  # hooks that take long are reported with their lines
        n = sum(filter(None, counts))
        others = [loop for loop in others if loop.phase in COMPUTE_PHASES]
    n -= round(reading.n_steps * sum(loop.operators_per_step for loop in others))
    if n <= TINY_MIN_OPERATORS * reading.n_steps or mean_s >= max_mean_s(trace):
        return None
    cost_s = _cost_s(reading, n, n * mean_s)
    count = f"{n / reading.n_steps:.0f} operators {'per step' if trace.steps else 'in the trace'}"
    hint = "" if trace.has_stacks else '; with_stack=True in DoctorOptions(profiler={"with_stack": True}) shows where'
    return TinyOperators(
        cost_s,
        cost_s * (1 - TINY_MIN_OPERATORS * reading.n_steps / n),
        f"{count} of {duration(mean_s)} each{hint}",
        mean_s,
        n,
    )


def _cost_s(reading: Reading, n_operators: int, host_s: float, site: CodeSite | None = None) -> float:
    """Return the cost of operators: idle time of the device, or on a CPU their time and part of the gaps."""
    trace = reading.trace
    part = n_operators / max(n_operators, trace.n_operators, 1)  # some traces contain sites without operators
    if trace.device is None:
        between_s = sum(step.categories.get("other", 0.0) for step in trace.windows)
        return min(host_s + part * between_s, reading.code_limit_s)
    late = path_of(trace).late
    if site is None or not late:
        return min(launching_s(trace), reading.idle_limit_s) * part
    at_site_s = sum(one.total_s for one in late if (one.site, one.function) == (site.site, site.function))
    return min(at_site_s, launching_s(trace), reading.idle_limit_s)
