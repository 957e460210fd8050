"""Idle time of the device between pieces of work, by cause."""

from typing import Final, NamedTuple

import numpy as np

from lightning_perf.records import DeviceActivity, Idle

from .intervals import SECOND, Times
from .nesting import Rows
from .phases import Phases
from .timeline import Timeline

QUEUE_GAP_NS: Final = 30
"""A gap up to this long between kernels that were both enqueued in time is the queue's own. It is the default of
HolisticTraceAnalysis' idle time breakdown (``consecutive_kernel_delay``)."""


def describe_idle(timeline: Timeline, phases: Phases) -> Idle | None:
    """Describe the gaps of the busiest stream over the whole trace; None without two pieces of work.

    The definition is that of HolisticTraceAnalysis' idle time breakdown: work that starts at s, was launched at l, and
    follows work that ended at e on the same stream has the gap s − e; it is *host wait* if l > e, else *kernel wait* if
    s − e < ``QUEUE_GAP_NS``, else *other*. Work with an unknown launch counts as launched in time.

    ``host_wait_by_phase_s`` counts gaps of the whole device in the analyzed span: time that the host waited for data is
    ``data_loading``, the rest belongs to the phase of the launch that ended the gap.
    """
    trace, work = timeline.trace, timeline.launches.device_rows
    if len(work) < 2:
        return None
    labels, lane_of = np.unique(_lanes(timeline, work), return_inverse=True)
    busiest = int(np.argmax(np.bincount(lane_of, weights=trace.durations[work])))
    own = np.flatnonzero(lane_of == busiest)
    rows = work[own]
    calls = timeline.launches.runtime_rows[own]
    before = np.maximum.accumulate(trace.ends[rows])[:-1]
    gap = np.maximum(trace.starts[rows][1:] - before, 0)
    late = (calls[1:] >= 0) & (trace.starts[calls[1:]] > before)
    short = ~late & (gap < QUEUE_GAP_NS)
    first = rows[0]
    return Idle(
        host_wait_s=int(gap[late].sum()) / SECOND,
        kernel_wait_s=int(gap[short].sum()) / SECOND,
        other_s=int(gap[~late & ~short].sum()) / SECOND,
        stream=f"{trace.devices[first]}.{trace.streams[first]}" if labels[busiest] >= 0 else "",
        span_s=int(trace.ends[rows].max() - trace.starts[first]) / SECOND,
        host_wait_by_phase_s=_by_phase(timeline, phases),
    )


class LateGaps(NamedTuple):
    """Gaps in which the whole device was idle because the host was late, in time order.

    Attributes:
        starts: When the device became idle.
        ends: When the next work began.
        launched: When that work was launched.
        calls: Row of the runtime call that launched it; -1 where no work follows.
    """

    starts: Times
    ends: Times
    launched: Times
    calls: Rows


def late_gaps(timeline: Timeline) -> LateGaps:
    """Return the late gaps between two pieces of work in the analyzed span."""
    trace, launches = timeline.trace, timeline.launches
    busy = timeline.device
    starts, ends = busy.ends[:-1], busy.starts[1:]
    next_work = np.searchsorted(trace.starts[launches.device_rows], ends, side="left")
    calls = launches.runtime_rows[next_work]
    launched = np.where(calls >= 0, trace.starts[calls], starts)
    late = (launched > starts) & timeline.steps.intervals.contains(ends - 1)
    return LateGaps(starts[late], ends[late], launched[late], calls[late])


def _by_phase(timeline: Timeline, phases: Phases) -> dict[str, float]:
    starts, ends, launched, _ = late_gaps(timeline)
    waiting = timeline.loader.covered(starts, np.minimum(launched, ends))
    rest = (ends - starts) - waiting
    names: dict[str, int] = {"data_loading": int(waiting.sum())}
    for name, moments in phases.items():
        if name != "data_loading":
            inside = moments.contains(launched)
            names[name] = int(rest[inside].sum())
            rest = np.where(inside, 0, rest)
    names["other"] = int(rest.sum())
    return {name: ns / SECOND for name, ns in names.items() if ns}


def describe_device(timeline: Timeline) -> DeviceActivity | None:
    """Describe the device from the first to the last work of the analyzed span; None without any."""
    trace = timeline.trace
    work = timeline.steps.inside(trace, timeline.launches.device_rows)
    if not len(work):
        return None
    lo, hi = int(trace.starts[work].min()), int(trace.ends[work].max())
    compute = (timeline.compute | timeline.memset).clip(lo, hi)
    communication = timeline.communication.clip(lo, hi)
    memcpy = timeline.memcpy.clip(lo, hi)
    exposed = communication - compute
    copying = memcpy - (compute | communication)
    busy = timeline.device.clip(lo, hi).total_ns
    memory, major, minor = (timeline.main_device.get(key) for key in ("totalGlobalMem", "computeMajor", "computeMinor"))
    return DeviceActivity(
        kind=_device_kind(timeline),
        span_s=(hi - lo) / SECOND,
        busy_s=busy / SECOND,
        idle_s=(hi - lo - busy) / SECOND,
        compute_s=compute.total_ns / SECOND,
        communication_s=communication.total_ns / SECOND,
        communication_exposed_s=exposed.total_ns / SECOND,
        memcpy_s=memcpy.total_ns / SECOND,
        memcpy_exposed_s=copying.total_ns / SECOND,
        n_devices=len(set(trace.devices[work].tolist())),
        n_streams=len(set(_lanes(timeline, work).tolist())),
        memory_bytes=memory if type(memory) is int else None,
        capability=f"{major}.{minor}" if type(major) is type(minor) is int else None,
    )


def _lanes(timeline: Timeline, work: Rows) -> Rows:
    trace = timeline.trace
    return trace.devices[work].astype(np.int64) * 2**32 + trace.streams[work]


def _device_kind(timeline: Timeline) -> str:
    """Return ``"rocm"`` or ``"cuda"`` by the names of runtime calls, else ``"unknown"``."""
    names = timeline.trace.names
    if any(name.startswith("hip") for name in names):
        return "rocm"
    return "cuda" if any(name.startswith(("cuda", "cuLaunch", "cuMemcpy")) for name in names) else "unknown"
