"""What moves: copies between host and device, and collectives between ranks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lightning_perf.records import Communication, Copies, CopySite

from .intervals import Times
from .kinds import ANNOTATION, COLLECTIVE_PREFIXES, MEMCPY, OPERATOR
from .nesting import Rows
from .spans import SECOND
from .stacks import Stacks
from .timeline import Timeline

SMALL_BYTES: Final = 1 << 20
N_SITES: Final = 16
_TYPE_BYTES: Final = {
    "float": 4, "double": 8, "half": 2, "c10::half": 2, "c10::bfloat16": 2, "bfloat16": 2, "int": 4, "long": 8,
    "long int": 8, "long long": 8, "char": 1, "signed char": 1, "unsigned char": 1, "byte": 1, "bool": 1, "short": 2,
}  # fmt: skip


def describe_copies(timeline: Timeline, stacks: Stacks) -> Copies | None:
    """Copies of the analysed span; None without device work."""
    if not timeline.has_device_work:
        return None
    trace = timeline.trace
    rows = timeline.windows.inside(trace, trace.rows(MEMCPY))
    durations = trace.durations[rows]
    computing = timeline.compute | timeline.communication
    exposed = durations - computing.covered(trace.starts[rows], trace.ends[rows])
    names = [trace.name(row) for row in rows.tolist()]
    up = np.array(["HtoD" in name for name in names], dtype=np.bool_)
    down = np.array(["DtoH" in name for name in names], dtype=np.bool_)
    inside = np.array(["DtoD" in name for name in names], dtype=np.bool_)
    pageable = np.array(["Pageable" in name for name in names], dtype=np.bool_)
    sizes = trace.sizes[rows]

    def seconds(values: Times, which: Any) -> float:
        return int(values[which].sum()) / SECOND

    def moved(which: Any) -> int | None:
        return int(sizes[which].sum()) if which.any() and (sizes[which] >= 0).all() else None

    return Copies(
        h2d_s=seconds(durations, up), h2d_n=int(up.sum()), h2d_pageable_n=int((up & pageable).sum()),
        d2h_s=seconds(durations, down), d2h_n=int(down.sum()),
        h2d_pageable_s=seconds(durations, up & pageable), h2d_exposed_s=seconds(exposed, up),
        h2d_pageable_exposed_s=seconds(exposed, up & pageable), h2d_bytes=moved(up),
        d2h_exposed_s=seconds(exposed, down), d2h_bytes=moved(down),
        d2d_s=seconds(durations, inside), d2d_n=int(inside.sum()),
        sites=_copy_sites(timeline, stacks, rows, exposed, up, down, pageable),
    )  # fmt: skip


def _copy_sites(
    timeline: Timeline, stacks: Stacks, rows: Rows, exposed: Times, up: Any, down: Any, pageable: Any
) -> tuple[CopySite, ...]:
    trace, launches = timeline.trace, timeline.launches
    position = np.searchsorted(launches.device_rows, rows)
    calls = launches.runtime_rows[position]
    operators = timeline.operator_of_work[position]
    found: dict[tuple[str, str, str, bool], list[int]] = {}
    for i in np.flatnonzero((up | down) & (calls >= 0)).tolist():
        site = stacks.sites(calls[i : i + 1])[0]
        place = site.place if site else trace.name(int(operators[i] if operators[i] >= 0 else calls[i]))
        key = (place, site.function if site else "", "h2d" if up[i] else "d2h", bool(pageable[i]))
        found.setdefault(key, []).append(i)
    sites = [
        CopySite(
            site=place, function=function, direction=direction, is_pageable=is_pageable, n=len(own),
            total_s=int(trace.durations[rows[own]].sum()) / SECOND, exposed_s=int(exposed[own].sum()) / SECOND,
        )
        for (place, function, direction, is_pageable), own in found.items()
    ]  # fmt: skip
    return tuple(sorted(sites, key=lambda site: (-site.exposed_s, -site.total_s))[:N_SITES])


def describe_communication(timeline: Timeline) -> Communication | None:
    """Collectives of the analysed span; None without any."""
    trace, windows = timeline.trace, timeline.windows
    span = windows.intervals
    rows = windows.inside(trace, timeline.communication_rows)
    calls = _collective_calls(timeline)
    if len(rows):
        moments = timeline.communication & span
        exposed = moments - timeline.compute
    elif len(calls) and not timeline.has_device_work:
        rows = calls
        moments = trace.intervals(calls) & span
        exposed = moments - timeline.operators
    else:
        return None
    sizes = [size for size in (_collective_bytes(timeline, row) for row in calls.tolist()) if size is not None]
    total, bare = moments.total_ns, exposed.total_ns
    n_steps = max(windows.n_steps, 1)
    by_name: dict[str, float] = {}
    for row in rows.tolist():
        name = _collective_name(trace.name(row))
        by_name[name] = by_name.get(name, 0.0) + int(trace.durations[row]) / SECOND
    return Communication(
        total_s=total / SECOND,
        exposed_s=bare / SECOND,
        overlap_fraction=1 - bare / total if total else None,
        n=len(rows),
        n_per_step=len(rows) / n_steps,
        small_per_step=sum(size < SMALL_BYTES for size in sizes) / n_steps if sizes else None,
        median_bytes=int(np.median(sizes)) if sizes else None,
        by_name=by_name,
        median_s=float(np.median(trace.durations[rows])) / SECOND,
    )


def _collective_calls(timeline: Timeline) -> Rows:
    """Where the host asked for a collective: the outer annotation only, c10d's own operator would count it twice."""
    trace, windows = timeline.trace, timeline.windows
    for kinds, prefixes in (
        ((ANNOTATION, OPERATOR), tuple(p for p in COLLECTIVE_PREFIXES if p.endswith(":") and not p.endswith("::"))),
        ((ANNOTATION, OPERATOR), ("record_param_comms",)),
    ):
        rows = trace.rows_named(trace.rows(*kinds), lambda name, prefixes=prefixes: name.startswith(prefixes))
        rows = rows[windows.host_step_of(trace.starts[rows]) >= 0]
        if len(rows):
            return rows
    return np.empty(0, dtype=np.int64)


def _collective_bytes(timeline: Timeline, row: int) -> int | None:
    details = timeline.trace.details.get(row)
    if details is None:
        return None
    if isinstance(details.n_elements, int) and isinstance(details.dtype, str):
        width = _TYPE_BYTES.get(details.dtype.lower())
        return details.n_elements * width if width else None
    total = 0
    for shape, kind in zip(details.shapes or (), details.types or (), strict=False):
        width = _TYPE_BYTES.get(kind.lower()) if isinstance(kind, str) else None
        if width and isinstance(shape, list) and shape and all(isinstance(size, int) for size in shape):
            total += width * int(np.prod(shape, dtype=np.int64))
    return total or None


def _collective_name(name: str) -> str:
    """``AllReduce`` and the like, from a kernel's or an annotation's name."""
    for known in (
        "AllReduce",
        "AllGather",
        "ReduceScatter",
        "Broadcast",
        "SendRecv",
        "Reduce",
        "all_to_all",
        "Generic",
    ):
        if known.lower() in name.lower().replace("_", "") or known in name:
            return known
    return name.split("(")[0].split(":")[-1][:48]
