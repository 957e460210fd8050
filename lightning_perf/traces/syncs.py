"""Calls in which the host waits for the device: their places, and the idle time that they cause."""

from typing import Final

import numpy as np

from lightning_perf.records import Syncs, SyncSite

from .idle import late_gaps
from .intervals import SECOND, Intervals, Times
from .kinds import OPERATOR
from .nesting import Rows
from .stacks import Stacks
from .timeline import SYNC_NAME, Timeline

ITEM: Final = "aten::item"
N_SITES: Final = 32


def describe_syncs(timeline: Timeline, stacks: Stacks) -> Syncs:
    """Describe the synchronizations of the analyzed span, without copies from pageable memory to the device."""
    trace, steps = timeline.trace, timeline.steps
    every = steps.on_host(trace, timeline.wait_rows)
    is_upload = np.isin(every, timeline.blocking_upload_rows)
    calls = every[~is_upload]
    explicit = trace.rows_named(calls, SYNC_NAME.match)
    copies = steps.on_host(trace, timeline.blocking_download_rows)
    items = steps.on_host(trace, trace.rows_named(trace.rows(OPERATOR), lambda name: name == ITEM))
    costs: Times | None = None
    if timeline.has_device_work:
        costs = _costs(timeline, every)[~is_upload]
    elif not len(calls):
        calls = items
    return Syncs(
        n=len(explicit),
        item_n=len(items),
        wait_s=int(trace.durations[explicit].sum()) / SECOND,
        sites=_sites(timeline, stacks, calls, costs),
        idle_after_s=None if costs is None else int(costs.sum()) / SECOND,
        blocking_copy_n=len(copies),
        blocking_copy_wait_s=int(trace.durations[copies].sum()) / SECOND,
    )


def costly_waits(timeline: Timeline) -> Intervals:
    """Return the moments of waits that later left the device idle."""
    calls = timeline.wait_rows
    return timeline.trace.intervals(calls[_costs(timeline, calls) > 0])


def _costs(timeline: Timeline, calls: Rows) -> Times:
    gaps = late_gaps(timeline)
    return lost_to_waits(timeline, calls, gaps.ends - gaps.starts, gaps.launched)[0]


def lost_to_waits(timeline: Timeline, calls: Rows, gaps: Times, launched: Times) -> tuple[Times, Times]:
    """Charge the device's idle time to the waits of the host before it.

    While the host waits for a busy device it launches nothing, and loses that much of its lead. The loss shows in later
    gaps before work that the host launches late, up to the time waited. If the device was idle during the wait, nothing
    is lost. A gap is charged to the latest wait that has lead left. The costs are those of all waits together: without
    one of them, the next may be longer.

    ``gaps`` are nanoseconds of late gaps, ``launched`` when the work that ended each was launched. Return the
    nanoseconds charged to each call that waits, and those charged of each gap.
    """
    trace = timeline.trace
    lost = [0] * len(calls)
    ends = trace.ends[calls]
    lead = timeline.device.covered(trace.starts[calls], ends).tolist()
    order = np.argsort(ends, kind="stable")
    waits = zip(order.tolist(), ends[order].tolist(), strict=True)
    wait = next(waits, None)
    open_waits: list[int] = []
    left = gaps.tolist()
    for i, (gap, launch) in enumerate(zip(gaps.tolist(), launched.tolist(), strict=True)):
        while wait is not None and wait[1] <= launch:
            if lead[wait[0]]:
                open_waits.append(wait[0])
            wait = next(waits, None)
        while gap and open_waits:
            latest = open_waits[-1]
            charged = min(gap, lead[latest] - lost[latest])
            lost[latest] += charged
            gap -= charged
            if lost[latest] == lead[latest]:
                open_waits.pop()
        left[i] = gap
    return np.array(lost, dtype=np.int64), gaps - np.array(left, dtype=np.int64)


def _sites(timeline: Timeline, stacks: Stacks, calls: Rows, costs: Times | None) -> tuple[SyncSite, ...]:
    trace = timeline.trace
    found: dict[tuple[str, str, str], list[int]] = {}
    for i, (row, place) in enumerate(zip(calls.tolist(), stacks.places(calls), strict=True)):
        found.setdefault((*place, trace.name(row)), []).append(i)
    in_step = timeline.steps.host_step_of(trace.starts[calls]) >= 0
    sites = [
        SyncSite(
            site=place, call=call, n=len(own), wait_s=int(trace.durations[calls[own]].sum()) / SECOND,
            idle_after_s=None if costs is None else int(costs[own].sum()) / SECOND, function=function,
            in_step_n=int(in_step[own].sum()) if timeline.steps.n_steps else 0,
        )
        for (place, function, call), own in found.items()
    ]  # fmt: skip
    return tuple(sorted(sites, key=lambda site: (-(site.idle_after_s or 0.0), -site.wait_s))[:N_SITES])
