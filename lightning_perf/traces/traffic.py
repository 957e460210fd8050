"""Copies between host and device."""

from typing import Any, Final

import numpy as np

from lightning_perf.records import Copies, CopySite

from .intervals import SECOND, Times
from .kinds import MEMCPY
from .nesting import Rows
from .stacks import Stacks
from .timeline import Timeline

N_SITES: Final = 16


def describe_copies(timeline: Timeline, stacks: Stacks) -> Copies | None:
    """Describe the copies of the analyzed span; None without device work."""
    if not timeline.has_device_work:
        return None
    trace = timeline.trace
    rows = timeline.steps.inside(trace, trace.rows(MEMCPY))
    durations = trace.durations[rows]
    computing = timeline.compute | timeline.communication
    exposed = durations - computing.covered(trace.starts[rows], trace.ends[rows])
    names = [trace.name(row) for row in rows.tolist()]
    up, down, inside, pageable = (
        np.array([part in name for name in names], dtype=np.bool_) for part in ("HtoD", "DtoH", "DtoD", "Pageable")
    )
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
    calls = launches.runtime_rows[np.searchsorted(launches.device_rows, rows)]
    found: dict[tuple[str, str, str, bool], list[int]] = {}
    known = np.flatnonzero((up | down) & (calls >= 0))
    for i, place in zip(known.tolist(), stacks.places(calls[known]), strict=True):
        found.setdefault((*place, "h2d" if up[i] else "d2h", bool(pageable[i])), []).append(i)
    sites = [
        CopySite(
            site=place, function=function, direction=direction, is_pageable=is_pageable, n=len(own),
            total_s=int(trace.durations[rows[own]].sum()) / SECOND, exposed_s=int(exposed[own].sum()) / SECOND,
        )
        for (place, function, direction, is_pageable), own in found.items()
    ]  # fmt: skip
    return tuple(sorted(sites, key=lambda site: (-site.exposed_s, -site.total_s))[:N_SITES])
