"""Divide the time of each step into exclusive categories that add up to it exactly."""

import numpy as np

from lightning_perf.records import CATEGORIES, TraceStep

from .intervals import SECOND, Times
from .kinds import KERNEL
from .nesting import Rows
from .step_times import StepTimes
from .timeline import Timeline


def category_times(timeline: Timeline, starts: Times, ends: Times) -> dict[str, Times]:
    """Return the nanoseconds of each window in each category.

    A moment counts for the first active category in the order of ``CATEGORIES``: what a kernel hides is charged to the
    kernel. The old TensorBoard tab used the same rule.
    """
    times: dict[str, Times] = {}
    covered = np.zeros(len(starts), dtype=np.int64)
    for category, active in zip(CATEGORIES, timeline.priorities, strict=False):
        inside = active.covered(starts, ends)
        times[category] = inside - covered
        covered = inside
    times["other"] = (ends - starts) - covered
    return times


def describe_steps(timeline: Timeline, steps: StepTimes) -> tuple[TraceStep, ...]:
    """Describe the steps that have names."""
    trace = timeline.trace
    starts, ends = steps.starts, steps.ends
    categories = category_times(timeline, starts, ends)
    has_device = timeline.has_device_work
    busy = timeline.device.covered(starts, ends)
    host_busy = timeline.device.covered(steps.host_starts, steps.host_ends)
    loader = timeline.loader.covered(steps.host_starts, steps.host_ends)
    exposed = (timeline.loader - timeline.device).covered(steps.host_starts, steps.host_ends)
    blocked = (timeline.loader | timeline.waits).covered(steps.host_starts, steps.host_ends)
    host = steps.host_ends - steps.host_starts
    n_kernels = _count(steps, launches_in_steps(timeline, steps))
    n_operators = _count(steps, steps.host_step_of(trace.starts[timeline.top_operators]))
    described = []
    for i, name in enumerate(steps.names):
        duration = int(ends[i] - starts[i])
        described.append(
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
    return tuple(described)


def launches_in_steps(timeline: Timeline, steps: StepTimes) -> Rows:
    """Return the step in which the host launched each kernel; -1 for none.

    In a trace without any launches it is the step in which the kernel ran.
    """
    launches = timeline.launches
    kernels = timeline.trace.kinds[launches.device_rows] == KERNEL
    step_of = steps.host_step_of(launches.times(timeline.trace)[kernels])
    known = launches.runtime_rows[kernels] >= 0
    return np.where(known, step_of, -1) if known.any() else step_of


def _count(steps: StepTimes, step_of: Rows) -> Rows:
    return np.bincount(step_of[step_of >= 0], minlength=len(steps.starts))
