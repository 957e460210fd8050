"""Calls that make the host wait for the device, where they are, and what they cost the device."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_perf.records import Syncs, SyncSite

from .idle import late_gaps
from .intervals import Times
from .kinds import KERNEL, MEMCPY, OPERATOR
from .nesting import ROUNDING_NS, Rows
from .spans import SECOND
from .stacks import Site, Stacks
from .timeline import SYNC_NAME, Timeline

ITEM: Final = "aten::item"
N_SITES: Final = 32


def blocking_copies(timeline: Timeline) -> Rows:
    """Runtime rows of copies that returned only when the copy was done: synchronisations in disguise.

    A copy from the device to ordinary memory is one even where it is called asynchronous.
    """
    trace, launches = timeline.trace, timeline.launches
    copies = (trace.kinds[launches.device_rows] == MEMCPY) & (launches.runtime_rows >= 0)
    work, calls = launches.device_rows[copies], launches.runtime_rows[copies]
    waited = trace.ends[work] <= trace.ends[calls] + ROUNDING_NS
    crosses = np.zeros(len(trace.names), dtype=np.bool_)
    for name_id in np.unique(trace.name_ids[work]).tolist():
        name = trace.names[name_id]
        crosses[name_id] = "DtoH" in name or "Pageable" in name
    return np.sort(calls[waited & crosses[trace.name_ids[work]]])


def describe_syncs(timeline: Timeline, stacks: Stacks) -> Syncs:
    """Synchronisations of the analysed span."""
    trace, windows = timeline.trace, timeline.windows

    def in_span(rows: Rows) -> Rows:
        return rows[windows.host_step_of(trace.starts[rows]) >= 0]

    waits = in_span(timeline.wait_rows)
    explicit = trace.rows_named(waits, lambda name: bool(SYNC_NAME.match(name)))
    copies = in_span(blocking_copies(timeline))
    items = in_span(trace.rows_named(trace.rows(OPERATOR), lambda name: name == ITEM))
    if timeline.has_device_work or len(waits):
        calls = np.sort(np.concatenate((waits, copies)))
        costs: Times | None = lost_to_waits(timeline, calls) if timeline.has_device_work else None
    else:
        calls, costs = items, None
    sites = _sites(timeline, stacks, calls, costs)
    return Syncs(
        n=len(explicit),
        item_n=len(items),
        wait_s=int(trace.durations[explicit].sum()) / SECOND,
        sites=sites,
        idle_after_s=None if costs is None else int(costs.sum()) / SECOND,
        blocking_copy_n=len(copies),
        blocking_copy_wait_s=int(trace.durations[copies].sum()) / SECOND,
    )


def lost_to_waits(timeline: Timeline, calls: Rows) -> Times:
    """For each call, nanoseconds that the device was idle later because the host had waited in it.

    While the host waits for a busy device it enqueues nothing, and loses that much of its lead. The loss shows in the
    gaps before work that the host launches late after the wait, up to the time waited; a host that was late anyway
    (the device was idle during the wait) loses nothing by waiting. Waits with no launch between them lose together,
    each in proportion; a wait after another launch takes over: what follows is charged to it alone.
    """
    trace, launches = timeline.trace, timeline.launches
    if not len(calls):
        return np.zeros(0, dtype=np.int64)
    known = launches.runtime_rows >= 0
    is_kernel = trace.kinds[launches.device_rows] == KERNEL
    launched_at = np.sort(trace.starts[launches.runtime_rows[known & is_kernel]])
    group_of = np.searchsorted(launched_at, trace.ends[calls], side="right")
    groups, member_of = np.unique(group_of, return_inverse=True)
    lead = timeline.device.covered(trace.starts[calls], trace.ends[calls])
    group_lead = np.bincount(member_of, weights=lead).astype(np.int64)
    starts, stops, launched = late_gaps(timeline)
    owner = np.searchsorted(groups, np.searchsorted(launched_at, launched, side="left"), side="right") - 1
    lost = [0] * len(groups)
    leads = group_lead.tolist()
    for group, gap in zip(owner.tolist(), (stops - starts).tolist(), strict=True):
        if group >= 0:
            lost[group] = min(lost[group] + gap, leads[group])
    share = np.divide(lost, group_lead, out=np.zeros(len(groups)), where=group_lead > 0)
    costs: Times = np.rint(lead * share[member_of]).astype(np.int64)
    return costs


def _sites(timeline: Timeline, stacks: Stacks, calls: Rows, costs: Times | None) -> tuple[SyncSite, ...]:
    trace = timeline.trace
    operators = timeline.operators_at(trace.thread_ids[calls], trace.starts[calls])
    found: dict[tuple[str, str, str], list[int]] = {}
    for i, (row, operator, site) in enumerate(
        zip(calls.tolist(), operators.tolist(), _user_sites(stacks, calls, operators), strict=True)
    ):
        place = site.place if site else trace.name(operator if operator >= 0 else row)
        found.setdefault((place, site.function if site else "", trace.name(row)), []).append(i)
    in_step = timeline.windows.host_step_of(trace.starts[calls]) >= 0
    sites = [
        SyncSite(
            site=place, call=call, n=len(own), wait_s=int(trace.durations[calls[own]].sum()) / SECOND,
            idle_after_s=None if costs is None else int(costs[own].sum()) / SECOND, function=function,
            in_step_n=int(in_step[own].sum()) if timeline.windows.n_steps else 0,
        )
        for (place, function, call), own in found.items()
    ]  # fmt: skip
    return tuple(sorted(sites, key=lambda site: (-(site.idle_after_s or 0.0), -site.wait_s))[:N_SITES])


def _user_sites(stacks: Stacks, calls: Rows, operators: npt.NDArray[np.int64]) -> list[Site | None]:
    """Old traces keep the stack with the operator, newer ones as calls around it."""
    direct = stacks.sites(calls)
    return [
        site or (stacks.sites(np.array([operator]))[0] if operator >= 0 else None)
        for site, operator in zip(direct, operators.tolist(), strict=True)
    ]
