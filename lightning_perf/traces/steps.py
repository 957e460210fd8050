"""Where the time of each step went: exclusive categories, by falling priority, that add up to the step exactly."""

from __future__ import annotations

import numpy as np

from lightning_perf.records import CATEGORIES, TraceStep

from .intervals import Times
from .kinds import KERNEL
from .nesting import Rows
from .spans import SECOND, Windows
from .timeline import Timeline


def category_times(timeline: Timeline, starts: Times, ends: Times) -> dict[str, Times]:
    """Nanoseconds of each window in each category.

    A moment belongs to the first category, in the order of ``CATEGORIES``, that anything at that moment is in: what is
    hidden behind a kernel is charged to the kernel. The old TensorBoard tab's rule, with collectives next to kernels.
    """
    times: dict[str, Times] = {}
    covered = np.zeros(len(starts), dtype=np.int64)
    for category, reached in zip(CATEGORIES, timeline.priorities, strict=False):
        inside = reached.covered(starts, ends)
        times[category] = inside - covered
        covered = inside
    times["other"] = (ends - starts) - covered
    return times


def describe_steps(timeline: Timeline) -> tuple[TraceStep, ...]:
    """The steps of a trace; empty where it has none."""
    if not timeline.windows.n_steps:
        return ()
    return _described(timeline, timeline.windows)


def describe_whole(timeline: Timeline) -> TraceStep:
    """The whole trace as one step."""
    lo, hi = timeline.trace.span
    edges = np.array([lo], dtype=np.int64), np.array([hi], dtype=np.int64)
    return _described(timeline, Windows(("trace",), *edges, *edges))[0]


def _described(timeline: Timeline, windows: Windows) -> tuple[TraceStep, ...]:
    trace = timeline.trace
    starts, ends = windows.starts, windows.ends
    categories = category_times(timeline, starts, ends)
    has_device = timeline.has_device_work
    busy = timeline.device.covered(starts, ends)
    host_busy = timeline.device.covered(windows.host_starts, windows.host_ends)
    loader = timeline.loader.covered(windows.host_starts, windows.host_ends)
    exposed = (timeline.loader - timeline.device).covered(windows.host_starts, windows.host_ends)
    blocked = (timeline.loader | timeline.waits).covered(windows.host_starts, windows.host_ends)
    host = windows.host_ends - windows.host_starts
    n_kernels = _count(windows, launches_in_steps(timeline, windows))
    n_operators = _count(windows, windows.host_step_of(trace.starts[timeline.top_operators]))
    steps = []
    for i, name in enumerate(windows.names):
        duration = int(ends[i] - starts[i])
        steps.append(
            TraceStep(
                name=name,
                duration_s=duration / SECOND,
                device_busy_s=int(busy[i]) / SECOND if has_device else None,
                busy_fraction=(int(busy[i]) / duration if duration else 0.0) if has_device else None,
                categories={category: int(categories[category][i]) / SECOND for category in CATEGORIES},
                start_s=int(starts[i] - trace.span[0]) / SECOND,
                host_s=int(host[i]) / SECOND,
                host_busy_s=int(host_busy[i]) / SECOND if has_device else None,
                loader_s=int(loader[i]) / SECOND,
                loader_exposed_s=int(exposed[i]) / SECOND,
                n_kernels=int(n_kernels[i]),
                n_operators=int(n_operators[i]),
                host_needed_s=int(host[i] - blocked[i]) / SECOND,
            )
        )
    return tuple(steps)


def launches_in_steps(timeline: Timeline, windows: Windows) -> Rows:
    """For each kernel the step in which the host launched it; -1 for none, and for one launched before the trace began.

    On a trace that tells no launch at all it is the step in which the kernel ran.
    """
    launches = timeline.launches
    kernels = timeline.trace.kinds[launches.device_rows] == KERNEL
    steps = windows.host_step_of(launches.times(timeline.trace)[kernels])
    known = launches.runtime_rows[kernels] >= 0
    return np.where(known, steps, -1) if known.any() else steps


def _count(windows: Windows, step_of: Rows) -> Rows:
    return np.bincount(step_of[step_of >= 0], minlength=windows.n)
