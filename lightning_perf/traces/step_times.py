"""The analyzed span of a trace: its steps on host and device, or the whole trace."""

import dataclasses

import numpy as np
import numpy.typing as npt

from .columns import Trace
from .intervals import Intervals, Times
from .kinds import ANNOTATION, DEVICE_ANNOTATION, STEP_PREFIX
from .launches import Launches
from .nesting import Rows


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The steps of a trace, in time order.

    Attributes:
        names: Names of the steps; empty if the trace has none and counts as one step.
        host_starts: When the host began each step, in nanoseconds since ``Trace.base_us``.
        host_ends: When the host ended it.
        starts: When the analyzed step begins: with the host, but not before the previous one ends.
        ends: When the analyzed step ends: with the host, but not before its work on the device is done.
        host_thread: Thread id of the step annotations; -1 without any.
    """

    names: tuple[str, ...]
    host_starts: Times
    host_ends: Times
    starts: Times
    ends: Times
    host_thread: int = -1

    @property
    def n_steps(self) -> int:
        """Number of steps; 0 for a trace without steps."""
        return len(self.names)

    @property
    def span_ns(self) -> int:
        """Length of the analyzed span in nanoseconds."""
        return int((self.ends - self.starts).sum())

    @property
    def intervals(self) -> Intervals:
        """The analyzed span."""
        return Intervals(self.starts, self.ends)

    def touch(self, trace: Trace, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which of the rows have their middle inside the span."""
        return self.intervals.contains((trace.starts[rows] + trace.ends[rows]) // 2)

    def inside(self, trace: Trace, rows: Rows) -> Rows:
        """Return those of the rows that have their middle inside the span."""
        return rows[self.touch(trace, rows)]

    def on_host(self, trace: Trace, rows: Rows) -> Rows:
        """Return those of the rows that start inside a step on the host."""
        return rows[self.host_step_of(trace.starts[rows]) >= 0]

    def host_step_of(self, moments: Times) -> Rows:
        """Return the step that the host was in at each moment; -1 outside all steps."""
        index = np.searchsorted(self.host_starts, moments, side="right") - 1
        inside = (index >= 0) & (moments < self.host_ends[np.maximum(index, 0)])
        return np.where(inside, index, -1)


def find_steps(trace: Trace, launches: Launches) -> StepTimes:
    """Find the steps: ``ProfilerStep`` on the host, else on the device, else the whole trace as one."""
    rows = trace.rows_named(trace.rows(ANNOTATION), lambda name: name.startswith(STEP_PREFIX))
    if len(rows):
        return _host_steps(trace, launches, rows)
    rows = trace.rows_named(trace.rows(DEVICE_ANNOTATION), lambda name: name.startswith(STEP_PREFIX))
    if len(rows):
        starts, ends = _without_overlap(trace, rows)
        return StepTimes(tuple(map(trace.name, rows.tolist())), starts, ends, starts, ends)
    return whole_trace(trace)


def whole_trace(trace: Trace, *names: str) -> StepTimes:
    """Return the whole trace as one step."""
    start, end = (np.array([moment], dtype=np.int64) for moment in trace.span)
    return StepTimes(names, start, end, start, end)


def _host_steps(trace: Trace, launches: Launches, rows: Rows) -> StepTimes:
    threads, counts = np.unique(trace.thread_ids[rows], return_counts=True)
    thread = int(threads[np.argmax(counts)])
    rows = rows[trace.thread_ids[rows] == thread]
    host_starts, host_ends = _without_overlap(trace, rows)
    names = tuple(map(trace.name, rows.tolist()))
    starts, ends = _with_device_work(trace, launches, host_starts, host_ends)
    return StepTimes(names, host_starts, host_ends, starts, ends, thread)


def _without_overlap(trace: Trace, rows: Rows) -> tuple[Times, Times]:
    """Return starts and ends of the rows; each begins no earlier than those before it end."""
    starts, ends = trace.starts[rows], trace.ends[rows]
    starts = np.maximum(starts, np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1])))
    return starts, np.maximum(ends, starts)


def _with_device_work(trace: Trace, launches: Launches, host_starts: Times, host_ends: Times) -> tuple[Times, Times]:
    """Return the steps on the device: work belongs to the step that enqueued it, however late it runs."""
    enqueued = launches.times(trace)
    step = np.searchsorted(host_starts, enqueued, side="right") - 1
    known = launches.runtime_rows >= 0
    work_ends = trace.ends[launches.device_rows]
    work_starts = trace.starts[launches.device_rows]
    starts, ends = host_starts.copy(), host_ends.copy()
    # Work left over from before the first step keeps the device busy into it.
    own = known & (step == 0)
    first_own = int(work_starts[own].min()) if own.any() else None
    previous = int(host_starts[0])
    if first_own is not None:
        left_over = ~(known & (step >= 0)) & (work_starts < first_own)
        if left_over.any():
            previous = max(previous, min(int(work_ends[left_over].max()), first_own))
    launched = known & (step >= 0) & (enqueued < host_ends[np.maximum(step, 0)])
    done = np.zeros(len(starts), dtype=np.int64)
    np.maximum.at(done, step[launched], work_ends[launched])
    for i in range(len(starts)):
        starts[i] = max(previous, int(starts[i]))
        ends[i] = max(int(ends[i]), int(starts[i]), int(done[i]))
        previous = int(ends[i])
    return starts, ends
