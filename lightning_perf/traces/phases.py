"""Find the phases of training on the host, also in traces without annotations."""

import re
from typing import Final

import numpy as np

from lightning_perf.records import PhaseWork

from .intervals import SECOND, Intervals, Times
from .kinds import ANNOTATION, KERNEL, OPERATOR
from .nesting import Rows
from .timeline import Timeline

BACKWARD_NAME: Final = re.compile(
    r"^autograd::engine::evaluate_function|Backward\d*$|^(torch::autograd::)?AccumulateGrad$"
)
"""Autograd functions; torch 1.8 gives them no common prefix."""

_FORWARD: Final = re.compile(r"perfdoctor:forward\Z|\[pl\]\[profile\].*\.training_step\Z", re.DOTALL).match
_BACKWARD: Final = re.compile(r"perfdoctor:backward\Z|\[pl\]\[profile\].*\.backward\Z", re.DOTALL).match
_OPTIMIZER: Final = re.compile(r"perfdoctor:optimizer\Z|Optimizer\.(step|zero_grad)#").match
_UPDATE: Final = re.compile(r"perfdoctor:optimizer\Z|Optimizer\.step#").match
"""Steps of the optimizer; zeroing gradients ends no phase, as it may precede backward."""

Phases = dict[str, Intervals]
"""Times of the host's phases, exclusive, by name; all other time is ``other``."""


def find_phases(timeline: Timeline) -> Phases:
    """Find the phases by these rules, in order of priority.

    - ``data_loading``: fetches.
    - ``optimizer``: torch's own ``Optimizer.step#`` and ``Optimizer.zero_grad#``, or our annotation.
    - ``backward``: from one autograd function to the next, on any thread, as long as the training thread starts nothing
      else in between; or our annotation, or Lightning's ``.backward``.
    - ``forward``: what the training thread does from the end of the previous phase to the start of a backward; on a
      trace without any backward, all its operators; or our annotation, or Lightning's ``training_step``.
    """
    trace = timeline.trace
    notes = trace.rows(ANNOTATION, OPERATOR)
    loader = timeline.loader
    noted = trace.intervals(trace.rows_named(notes, _FORWARD))
    backward = (_backward(timeline) | trace.intervals(trace.rows_named(notes, _BACKWARD))) - loader
    # Forward and backward run inside the optimizer's step where it is given a closure, as Lightning does.
    optimizer = trace.intervals(trace.rows_named(notes, _OPTIMIZER)) - loader - backward - noted
    updates = trace.intervals(trace.rows_named(notes, _UPDATE))
    forward = (noted if len(noted) else _forward(timeline, backward, updates)) - loader - optimizer - backward
    return {"data_loading": loader, "optimizer": optimizer, "backward": backward, "forward": forward}


def _backward(timeline: Timeline) -> Intervals:
    trace = timeline.trace
    functions = trace.rows_named(trace.rows(OPERATOR), BACKWARD_NAME.search)
    if not len(functions):
        return Intervals()
    breaks = _other_starts(timeline, functions)
    run = np.searchsorted(breaks, trace.starts[functions], side="right")
    _, first, run_of = np.unique(run, return_index=True, return_inverse=True)
    ends = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(ends, run_of, trace.ends[functions])
    return Intervals(trace.starts[functions][first], ends)


def _other_starts(timeline: Timeline, functions: Rows) -> Times:
    """Return when the training thread started something outside of a backward, or a step began."""
    tops = np.setdiff1d(timeline.main_operators, functions, assume_unique=True)
    return np.sort(np.concatenate((timeline.trace.starts[tops], timeline.steps.host_starts)))


def _forward(timeline: Timeline, backward: Intervals, updates: Intervals) -> Intervals:
    trace, tops = timeline.trace, timeline.main_operators
    if not len(backward) or not len(tops):
        return trace.intervals(tops)
    before = np.sort(np.concatenate((backward.ends, updates.ends, timeline.steps.host_starts)))
    index = np.searchsorted(before, backward.starts, side="right") - 1
    begins = np.where(index >= 0, before[np.maximum(index, 0)], trace.span[0])
    # It begins with its first operator, not with whatever the loop does before.
    first = np.searchsorted(trace.starts[tops], begins, side="left")
    starts = trace.starts[tops][np.minimum(first, len(tops) - 1)]
    return Intervals(np.maximum(starts, begins), backward.starts)


def describe_phases(timeline: Timeline, phases: Phases) -> tuple[PhaseWork, ...]:
    """Return host and device time of the phases that occurred in the analyzed span."""
    trace, launches, steps = timeline.trace, timeline.launches, timeline.steps
    work = launches.device_rows
    counted = steps.touch(trace, work)
    launched = launches.times(trace)
    known = launches.runtime_rows >= 0
    hosts = Intervals(steps.host_starts, steps.host_ends)
    found = []
    free = counted.copy()
    remaining = hosts
    for name, moments in phases.items():
        own = free & known & moments.contains(launched)
        free &= ~own
        found.append(_phase(timeline, name, moments & hosts, work[own]))
        remaining = remaining - moments
    found.append(_phase(timeline, "other", remaining, work[free]))
    return tuple(phase for phase in found if phase.host_s or phase.device_s)


def _phase(timeline: Timeline, name: str, moments: Intervals, work: Rows) -> PhaseWork:
    trace = timeline.trace
    return PhaseWork(
        name=name,
        host_s=moments.total_ns / SECOND,
        device_s=int(trace.durations[work].sum()) / SECOND,
        n_kernels=int((trace.kinds[work] == KERNEL).sum()),
        n_operators=int(moments.contains(trace.starts[timeline.top_operators]).sum()),
    )
