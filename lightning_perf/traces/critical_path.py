"""Divide the analyzed span by what it waits for: work of the device, or the host that launches it."""

import numpy as np

from lightning_perf.records import CriticalPath, LatePlace

from .collectives import Collectives
from .idle import LateGaps, late_gaps
from .intervals import SECOND, Intervals
from .kernels import kernel_kind
from .kinds import RUNTIME
from .nesting import Rows
from .stacks import Stacks
from .syncs import costly_waits, lost_to_waits
from .timeline import Timeline
from .waits import ALLOCATION, startup_rows

N_PLACES = 8

LONG_GAP_NS = 1_000_000
"""A launch takes about ten microseconds, with the profiler and Python around it some hundred.

Time in the device's runtime does not count as long: some launches load code."""


def describe_critical_path(timeline: Timeline, stacks: Stacks, collectives: Collectives) -> CriticalPath | None:
    """Divide the analyzed span into exclusive causes whose seconds add up to it.

    While the device is idle before work that was launched late, the host is on the critical path, back to where it last
    waited for the device or for data. Work of the device meanwhile is ``hidden``: faster kernels would only leave it
    idle for longer. Collectives are never hidden, because their duration depends on other ranks too. All other work of
    the device is on the critical path. In a trace without device work, the host's operators replace kernels.

    Returns:
        None if the trace does not show the work of a device.
    """
    if timeline.hides_device:
        return None
    span = timeline.steps.intervals
    if not len(span):
        return CriticalPath()
    if not len(timeline.device):
        return _on_host(timeline, collectives)
    recorded = span
    if not timeline.steps.n_steps:
        span = span.clip(int(timeline.device.starts[0]), int(timeline.device.ends[-1]))
    gaps = _gaps(timeline, span)
    idle = Intervals(gaps.starts, gaps.ends)
    collecting = timeline.communication - timeline.compute - timeline.memset
    hidden = (timeline.device & _host_chain(timeline, gaps) & span) - collecting
    delayed = collecting & costly_waits(timeline) & span
    causes = _device_causes(timeline, span - hidden - delayed)
    kinds = _kernel_kinds_s(timeline, span - hidden, causes["compute"])
    causes["sync_communication"] = delayed.total_ns
    causes["hidden"] = hidden.total_ns
    named, edges = _named_waits(timeline), recorded - span
    causes["edges"] = (edges - named["startup"]).total_ns
    causes["queue"] = (span - timeline.device - idle).total_ns
    waits = {name: moments & idle & span for name, moments in named.items()}
    causes |= {name: moments.total_ns for name, moments in waits.items()}
    causes["startup"] += (edges & named["startup"]).total_ns
    for moments in waits.values():
        idle = idle - moments
    late, places, long_ns = _late_gap_causes(timeline, stacks, gaps, idle & span, waits["blocked"])
    late["pageable_copy"] += causes["pageable_copy"]
    return CriticalPath(
        causes={name: ns / SECOND for name, ns in (causes | late).items() if ns},
        kinds=kinds,
        late=places,
        long_gaps_s=long_ns / SECOND,
    )


def _named_waits(timeline: Timeline) -> dict[str, Intervals]:
    trace = timeline.trace
    startup = trace.intervals(startup_rows(timeline)) - timeline.loader
    allocation = trace.rows_named(trace.rows(RUNTIME), ALLOCATION.match)
    allocating = trace.intervals(allocation) - timeline.loader - startup
    blocked = timeline.waits - timeline.loader - startup - allocating
    return {"loader": timeline.loader, "startup": startup, "allocator": allocating, "blocked": blocked}


def _on_host(timeline: Timeline, collectives: Collectives) -> CriticalPath:
    span = timeline.steps.intervals
    computing = timeline.host_compute & span
    communication = (timeline.trace.intervals(collectives.rows) & span) - computing
    loader = (timeline.loader & span) - computing - communication
    rest = span - computing - communication - loader
    parts = {"compute": computing, "communication": communication, "loader": loader, "between": rest}
    return CriticalPath(causes={name: part.total_ns / SECOND for name, part in parts.items() if len(part)})


def _gaps(timeline: Timeline, span: Intervals) -> LateGaps:
    """Return the late gaps, with the time before the first work and after the last."""
    trace, launches, busy = timeline.trace, timeline.launches, timeline.device
    starts, ends, launched, calls = late_gaps(timeline)
    first, last = int(span.starts[0]), int(span.ends[-1])
    if first < busy.starts[0] and launches.runtime_rows[0] >= 0:
        starts, ends = np.insert(starts, 0, first), np.insert(ends, 0, busy.starts[0])
        launched = np.insert(launched, 0, trace.starts[launches.runtime_rows[0]])
        calls = np.insert(calls, 0, launches.runtime_rows[0])
    if busy.ends[-1] < last:
        starts, ends = np.append(starts, busy.ends[-1]), np.append(ends, last)
        launched, calls = np.append(launched, last), np.append(calls, -1)
    return LateGaps(starts, ends, launched, calls)


def _host_chain(timeline: Timeline, gaps: LateGaps) -> Intervals:
    """Return the time from the host's last wait before each late launch to the launched work."""
    trace, busy = timeline.trace, timeline.device
    waits = timeline.wait_rows
    waits = waits[busy.covered(trace.starts[waits], trace.ends[waits]) > 0]
    block = np.searchsorted(busy.starts, trace.ends[waits], side="left") - 1
    released = np.minimum(trace.ends[waits], busy.ends[block])
    fetches = timeline.loader_rows
    idle = trace.durations[fetches] - busy.covered(trace.starts[fetches], trace.ends[fetches])
    anchors = np.sort(np.concatenate((trace.span[:1], released, trace.ends[fetches[idle > 0]])))
    anchor = anchors[np.maximum(np.searchsorted(anchors, gaps.launched, side="right") - 1, 0)]
    return Intervals(np.minimum(anchor, gaps.starts), gaps.ends) if len(anchor) else Intervals()


def _device_causes(timeline: Timeline, path: Intervals) -> dict[str, int]:
    """Return nanoseconds of the path by the device's activity; the first one in this order counts."""
    trace, launches = timeline.trace, timeline.launches
    copies = launches.device_rows
    up = trace.intervals(trace.rows_named(copies, lambda name: "HtoD" in name))
    pageable = trace.intervals(trace.rows_named(copies, lambda name: "HtoD" in name and "Pageable" in name))
    parts = {
        "compute": timeline.compute | timeline.memset,
        "communication": timeline.communication,
        "pageable_copy": pageable,
        "transfer": up,
        "device_to_host": trace.intervals(trace.rows_named(copies, lambda name: "DtoH" in name)),
        "device_copy": timeline.memcpy,
    }
    causes: dict[str, int] = {}
    for name, part in parts.items():
        causes[name] = (part & path).total_ns
        path = path - part
    return causes


def _kernel_kinds_s(timeline: Timeline, path: Intervals, total_ns: int) -> dict[str, float]:
    """Return seconds of computing on the path by kind of kernel; concurrent kernels share them."""
    trace, rows = timeline.trace, timeline.compute_rows
    names, position = np.unique(trace.name_ids[rows], return_inverse=True)
    on_path = path.covered(trace.starts[rows], trace.ends[rows])
    by_name = np.bincount(position, weights=on_path, minlength=len(names))
    sum_ns = int(on_path.sum())
    scale = min(1.0, total_ns / sum_ns) / SECOND if sum_ns else 0.0
    kinds: dict[str, float] = {}
    for name_id, ns in zip(names.tolist(), by_name.tolist(), strict=True):
        kind = kernel_kind(trace.names[name_id])
        kinds[kind] = kinds.get(kind, 0.0) + ns * scale
    return {kind: seconds for kind, seconds in kinds.items() if seconds}


def _late_gap_causes(
    timeline: Timeline, stacks: Stacks, gaps: LateGaps, free: Intervals, blocked: Intervals
) -> tuple[dict[str, float], tuple[LatePlace, ...], int]:
    """Divide the rest of the late gaps: after a wait, inside operators and calls of the runtime, and between them.

    Returns:
        Nanoseconds by cause, the places, and the nanoseconds in long gaps that no wait explains.
    """
    net = free.covered(gaps.starts, gaps.ends)
    calls = timeline.wait_rows
    costs, after_waits = lost_to_waits(timeline, calls, net, gaps.launched)
    is_upload = np.isin(calls, timeline.blocking_upload_rows)
    rest = net - after_waits
    inside = ((timeline.operators | timeline.runtime) & free).covered(gaps.starts, gaps.ends)
    launch = rest * (inside / np.maximum(net, 1))
    waited = blocked.covered(gaps.starts, gaps.ends)
    found: dict[tuple[str, str], list[int]] = {}
    for i, place in enumerate(_places(stacks, gaps.calls)):
        found.setdefault(place, []).append(i)
    places = [
        LatePlace(
            site=site, function=function, n=len(own), total_s=int((rest + waited)[own].sum()) / SECOND,
            between_s=float((rest - launch)[own].sum()) / SECOND,
        )
        for (site, function), own in found.items()
    ]  # fmt: skip
    causes = {"launch": float(launch.sum()), "between": float((rest - launch).sum())}
    causes |= {"pageable_copy": int(costs[is_upload].sum()), "sync": int(costs[~is_upload].sum())}
    outside = rest * (1 - (timeline.runtime & free).covered(gaps.starts, gaps.ends) / np.maximum(net, 1))
    long_ns = int(rest[outside > LONG_GAP_NS].sum())
    return causes, tuple(sorted(places, key=lambda one: -one.total_s)[:N_PLACES]), long_ns


def _places(stacks: Stacks, calls: Rows) -> list[tuple[str, str]]:
    """Return the place that made each runtime call (-1 for none); see ``Stacks.places``."""
    places = iter(stacks.places(calls[calls >= 0]))
    return [next(places) if row >= 0 else ("", "") for row in calls.tolist()]
