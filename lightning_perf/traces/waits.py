"""Host time that is not spent on launching work: fetches, memory from the driver, one-off startup."""

import re
from typing import Final

import numpy as np

from lightning_perf.records import Allocator, CallTime, LoaderWait, Startup

from .intervals import SECOND
from .kinds import RUNTIME
from .nesting import Rows
from .timeline import Timeline

STALL_SHARE: Final = 0.1
"""Fraction of a step above which a fetch is a stall; TraceML's input rule warns from the same value."""

ALLOCATION: Final = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Mem)?(Malloc|Free|Alloc)(Async|Managed|Host|FromPoolAsync)?(_v\d)?$"
)

ONE_OFF: Final = re.compile(
    r"StreamCreate|GetStreamPriorityRange|DeviceGetAttribute|FuncSetAttribute|ModuleLoad|LibraryLoad|ModuleGetFunction"
    r"|GetDeviceProperties|DeviceSetLimit|CtxCreate|PrimaryCtx|cuInit|EventCreate|HostAlloc|hipHostMalloc|FuncGetAttr"
    r"|DeviceReset|GetDeviceCount|SetDevice$|MemGetInfo|^(cuda|hip)(Free|Malloc)$|OccupancyMax"
)
ONE_OFF_NS: Final = 10_000_000
"""In the steady state each of these calls takes microseconds; one of 10 ms creates a context, handle or module."""

MAX_ONE_OFF_CALLS: Final = 16


def describe_loader(timeline: Timeline) -> LoaderWait | None:
    """Describe the fetches of the analyzed span; None without any."""
    trace, steps = timeline.trace, timeline.steps
    rows = steps.on_host(trace, timeline.loader_rows)
    if not len(rows):
        return None
    starts, ends = trace.starts[rows], trace.ends[rows]
    durations = ends - starts
    waited = trace.intervals(rows)
    n_periods = steps.n_steps or len(rows)
    host_ns = int((steps.host_ends - steps.host_starts).sum())
    p50_ns, p95_ns = np.interp((0.5, 0.95), np.linspace(0, 1, len(durations)), np.sort(durations)).tolist()
    return LoaderWait(
        total_s=waited.total_ns / SECOND,
        exposed_s=(waited - timeline.device).total_ns / SECOND,
        n=len(rows),
        p50_s=p50_ns / SECOND,
        p95_s=p95_ns / SECOND,
        max_s=int(durations.max()) / SECOND,
        stalled_fraction=float((durations > STALL_SHARE * host_ns / n_periods).mean()),
    )


def describe_allocator(timeline: Timeline) -> Allocator | None:
    """Describe driver calls for memory in the analyzed span; None without a known runtime."""
    trace, steps = timeline.trace, timeline.steps
    calls = trace.rows(RUNTIME)
    if not len(calls):
        return None
    rows = steps.on_host(trace, trace.rows_named(calls, ALLOCATION.match))
    moments = trace.intervals(rows)
    return Allocator(
        n=len(rows),
        total_s=moments.total_ns / SECOND,
        exposed_s=(moments - timeline.device).total_ns / SECOND,
        calls=_by_name(timeline, rows),
    )


def describe_startup(timeline: Timeline) -> Startup | None:
    """Describe one-off costs anywhere in the trace; None without any."""
    trace = timeline.trace
    rows = startup_rows(timeline)
    if not len(rows):
        return None
    return Startup(
        total_s=trace.intervals(rows).total_ns / SECOND,
        span_s=int(trace.ends[rows].max() - trace.span[0]) / SECOND,
        calls=_by_name(timeline, rows),
    )


def startup_rows(timeline: Timeline) -> Rows:
    """Return calls of one-off startup, without those that are repeated all the time, such as freeing memory."""
    trace = timeline.trace
    rows = trace.rows_named(trace.rows(RUNTIME), ONE_OFF.search)
    rows = rows[trace.durations[rows] >= ONE_OFF_NS]
    ids = trace.name_ids[rows]
    return rows[np.bincount(ids, minlength=1)[ids] <= MAX_ONE_OFF_CALLS]


def _by_name(timeline: Timeline, rows: Rows) -> tuple[CallTime, ...]:
    trace = timeline.trace
    ids, position = np.unique(trace.name_ids[rows], return_inverse=True)
    counts = np.bincount(position, minlength=len(ids))
    totals = np.bincount(position, weights=trace.durations[rows], minlength=len(ids))
    calls = [
        CallTime(name=trace.names[i], n=int(n), total_s=ns / SECOND)
        for i, n, ns in zip(ids.tolist(), counts.tolist(), totals.tolist(), strict=True)
    ]
    return tuple(sorted(calls, key=lambda call: -call.total_s))
