"""Host and device time of operators and of the user's functions that called them."""

from collections import Counter, defaultdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_perf.records import CodeSite, OperatorMemory, OperatorTime

from .intervals import SECOND, Times
from .kinds import OPERATOR
from .nesting import Rows
from .stacks import Stacks
from .timeline import Timeline

N_OPERATORS: Final = 64
N_SITES: Final = 32
_MAX_SUM: Final = 2.0**62
_ALLOCATING: Final = ("aten::empty", "aten::new_empty", "aten::resize_")


class OperatorTimes:
    """Nanoseconds of each operator; arrays are by row of the trace.

    Attributes:
        host_self: On the host, without called operators.
        device_self: Of work that it launched directly.
        device_total: Of work that it or called operators launched.
        is_outermost: Whether no caller has the same name.
    """

    def __init__(self, timeline: Timeline) -> None:
        trace = timeline.trace
        n = len(trace)
        self.device_self: Times = np.zeros(n, dtype=np.int64)
        self.device_total: Times = np.zeros(n, dtype=np.int64)
        self.is_outermost = np.ones(n, dtype=np.bool_)
        launchers = timeline.operator_of_work
        known = launchers >= 0
        np.add.at(self.device_self, launchers[known], trace.durations[timeline.launches.device_rows][known])
        children = np.zeros(n, dtype=np.int64)
        for host in timeline.threads.values():
            called = host.tree.parents >= 0
            np.add.at(children, host.rows[host.tree.parents[called]], trace.durations[host.rows[called]])
            self.device_total[host.rows] = host.tree.subtree_sum(self.device_self[host.rows])
            self.is_outermost[host.rows] = _outermost(trace.name_ids[host.rows], host.tree.parents)
        self.host_self: Times = np.maximum(trace.durations - children, 0)


def _outermost(names: npt.NDArray[Any], parents: Rows) -> npt.NDArray[np.bool_]:
    """Return whether each event has no direct or indirect caller of its own name."""
    result = np.ones(len(names), dtype=np.bool_)
    callers = parents.copy()
    pending = np.flatnonzero(callers >= 0)
    while len(pending):
        same = names[callers[pending]] == names[pending]
        result[pending[same]] = False
        pending = pending[~same]
        callers[pending] = parents[callers[pending]]
        pending = pending[callers[pending] >= 0]
    return result


def describe_operators(timeline: Timeline, times: OperatorTimes) -> tuple[OperatorTime, ...]:
    """Return the operators of the analyzed span by name, those with most host or device time of their own first."""
    trace = timeline.trace
    rows = timeline.steps.on_host(trace, trace.rows(OPERATOR))
    if not len(rows):
        return ()
    ids, position = np.unique(trace.name_ids[rows], return_inverse=True)
    outermost = times.is_outermost[rows]

    def by_name(values: Times) -> npt.NDArray[np.float64]:
        return np.bincount(position, weights=values, minlength=len(ids)) / SECOND

    calls = np.bincount(position, minlength=len(ids))
    host_total = by_name(np.where(outermost, trace.durations[rows], 0))
    host_self = by_name(times.host_self[rows])
    device_self = by_name(times.device_self[rows])
    device_total = by_name(np.where(outermost, times.device_total[rows], 0))
    largest = np.argsort(-(host_self + device_self), kind="stable")[:N_OPERATORS]
    return tuple(
        OperatorTime(
            name=trace.names[ids[i]], calls=int(calls[i]), host_total_s=float(host_total[i]),
            host_self_s=float(host_self[i]), device_total_s=float(device_total[i]),
            device_self_s=float(device_self[i]),
        )
        for i in largest.tolist()
    )  # fmt: skip


def describe_allocations(timeline: Timeline) -> tuple[OperatorMemory, ...]:
    """Return the operators that allocated in the analyzed span, those with most bytes first."""
    trace, allocations = timeline.trace, timeline.trace.allocations
    inside = timeline.steps.host_step_of(allocations.moments) >= 0
    rows = timeline.operators_at(allocations.thread_ids[inside], allocations.moments[inside])
    callers = np.full(len(trace) + 1, -1, dtype=np.int64)  # the last one for row -1, no operator
    for host in timeline.threads.values():
        called = host.tree.parents >= 0
        callers[host.rows[called]] = host.rows[host.tree.parents[called]]
    allocates = np.array([name.startswith(_ALLOCATING) for name in trace.names], dtype=np.bool_)
    while (moved := allocates[trace.name_ids[rows]] & (callers[rows] >= 0)).any():
        rows[moved] = callers[rows[moved]]
    ids, position = np.unique(np.where(rows >= 0, trace.name_ids[rows], -1), return_inverse=True)
    sizes, on_device = allocations.sizes[inside], allocations.on_device[inside]
    n = np.bincount(position, minlength=len(ids))
    device, host_bytes = (
        np.minimum(np.bincount(position, weights=sizes * flags, minlength=len(ids)), _MAX_SUM)
        for flags in (on_device, ~on_device)
    )
    return tuple(
        OperatorMemory(
            name=trace.names[ids[i]] if ids[i] >= 0 else "", n=int(n[i]), device_bytes=int(device[i]),
            host_bytes=int(host_bytes[i]),
        )
        for i in np.argsort(-(device + host_bytes), kind="stable")[:N_OPERATORS].tolist()
    )  # fmt: skip


def describe_code(timeline: Timeline, times: OperatorTimes, stacks: Stacks) -> tuple[CodeSite, ...]:
    """Return the user's functions with the operators that they called in the analyzed span, most time first."""
    trace = timeline.trace
    tops = timeline.steps.on_host(trace, timeline.top_operators)
    found: dict[tuple[str, str], list[int]] = {}
    repeats: defaultdict[tuple[str, str], Counter[tuple[int, int]]] = defaultdict(Counter)
    for row, site in zip(tops.tolist(), stacks.sites(tops), strict=True):
        if site is None:
            continue
        key = (site.place, site.function)
        found.setdefault(key, []).append(row)
        if site.frame >= 0:
            repeats[key][site.frame, int(trace.name_ids[row])] += 1
    sites = []
    for (place, function), rows in found.items():
        own = np.array(rows)
        name_id, top_n = Counter(trace.name_ids[own].tolist()).most_common(1)[0]
        sites.append(
            CodeSite(
                site=place, function=function, n_operators=len(rows),
                host_s=int(trace.durations[own].sum()) / SECOND,
                device_s=int(times.device_total[own].sum()) / SECOND,
                top_operator=trace.names[name_id], top_n=top_n,
                max_repeats=max(repeats[place, function].values(), default=1),
            )
        )  # fmt: skip
    return tuple(sorted(sites, key=lambda site: -(site.host_s + site.device_s))[:N_SITES])
