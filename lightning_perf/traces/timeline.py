"""The activity of host and device over time: sets of moments and call trees that every analysis starts from."""

import dataclasses
import re
from collections.abc import Callable
from functools import cached_property
from itertools import accumulate
from operator import or_
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .columns import Trace
from .intervals import Intervals, Times
from .kernels import kernel_kind
from .kinds import ANNOTATION, KERNEL, MEMCPY, MEMSET, OPERATOR, PYTHON, RUNTIME, is_loader_name
from .launches import Launches, find_launches
from .nesting import ROUNDING_NS, Nesting, Rows
from .step_times import StepTimes, find_steps

SYNC_NAME: Final = re.compile(r"^(cuda|hip|cu)(Stream|Device|Ctx)Synchronize(_ptsz)?$|^deviceSynchronize$")
WAIT_NAME: Final = re.compile(r"^(cuda|hip|cu)(Stream|Device|Ctx|Event)Synchronize(_ptsz)?$|^deviceSynchronize$")
_NOT_COMPUTING: Final = ("autograd::", "torch::autograd::", "c10d::", "_c10d_functional::", "c10d_functional::")


@dataclasses.dataclass(frozen=True)
class HostThread:
    """Events of one host thread, in calling order."""

    rows: Rows
    tree: Nesting


def trees_by_thread(trace: Trace, rows: Rows) -> dict[int, HostThread]:
    """Return the call tree of each thread that has any of the events."""
    ids = trace.thread_ids[rows]
    trees: dict[int, HostThread] = {}
    for thread in np.flatnonzero(np.bincount(ids)).tolist():
        own = rows[ids == thread]
        trees[thread] = HostThread(own, Nesting(trace.starts[own], trace.ends[own]))
    return trees


def innermost_at(trees: dict[int, HostThread], threads: npt.NDArray[Any], moments: Times) -> Rows:
    """Return for each thread and moment the row of the innermost event, -1 for none."""
    found = np.full(len(moments), -1, dtype=np.int64)
    for thread, host in trees.items():
        own = np.flatnonzero(threads == thread)
        if len(own):
            index = host.tree.innermost(moments[own])
            found[own] = np.where(index >= 0, host.rows[index], -1)
    return found


class Timeline:
    """A trace, and what all analyses derive from it, computed once.

    Attributes:
        launches: Which call enqueued which device work.
        steps: The analyzed span.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.launches: Launches = find_launches(trace)
        self.steps: StepTimes = find_steps(trace, self.launches)

    # -- device ---------------------------------------------------------------------------------------------------

    @cached_property
    def has_device_work(self) -> bool:
        """Whether the trace shows work of a known device."""
        return len(self.launches.device_rows) > 0

    @cached_property
    def main_device(self) -> dict[str, Any]:
        """Properties of the device with most work, as the profiler wrote them; empty if unknown."""
        listed = self.trace.origin.devices
        used, counts = np.unique(np.maximum(self.trace.devices[self.launches.device_rows], 0), return_counts=True)
        if len(used) and len(listed) > 1:
            busiest = int(used[counts.argmax()])
            listed = tuple(each for each in listed if each.get("id") == busiest)
        return listed[0] if listed else {}

    @cached_property
    def hides_device(self) -> bool:
        """Whether there was a device whose work the trace does not show."""
        return not self.has_device_work and bool(self.trace.origin.devices or len(self.runtime))

    @cached_property
    def communication_rows(self) -> Rows:
        """Collective kernels."""
        return self.trace.rows_named(self.trace.rows(KERNEL), lambda name: kernel_kind(name) == "communication")

    @cached_property
    def compute_rows(self) -> Rows:
        """Kernels that are no collectives."""
        return np.setdiff1d(self.trace.rows(KERNEL), self.communication_rows, assume_unique=True)

    @cached_property
    def compute(self) -> Intervals:
        """When a kernel ran that is no collective."""
        return self.trace.intervals(self.compute_rows)

    @cached_property
    def communication(self) -> Intervals:
        """When a collective ran on the device."""
        return self.trace.intervals(self.communication_rows)

    @cached_property
    def memcpy(self) -> Intervals:
        """When the device copied."""
        return self.trace.intervals(self.trace.rows(MEMCPY))

    @cached_property
    def memset(self) -> Intervals:
        """When the device set memory."""
        return self.trace.intervals(self.trace.rows(MEMSET))

    @cached_property
    def device(self) -> Intervals:
        """When the device did anything."""
        return self.trace.intervals(self.launches.device_rows)

    @cached_property
    def priorities(self) -> tuple[Intervals, ...]:
        """The moments of each category together with all above it, in the order of ``records.CATEGORIES``."""
        parts = (self.compute, self.communication, self.memcpy, self.memset, self.runtime, self.loader, self.operators)
        return tuple(accumulate(parts, or_))

    @cached_property
    def computing(self) -> Intervals:
        """When something was computed: by the device, on a trace without one by the host's operators."""
        return self.compute if self.has_device_work else self.host_compute

    # -- host -----------------------------------------------------------------------------------------------------

    @cached_property
    def runtime(self) -> Intervals:
        """When any host thread was inside the device's runtime or driver."""
        return self.trace.intervals(self.trace.rows(RUNTIME))

    @cached_property
    def loader_rows(self) -> Rows:
        """Fetches, the outermost where they nest."""
        rows = self.trace.rows_named(self.trace.rows(ANNOTATION), is_loader_name)
        kept: list[int] = []
        ended_ns: dict[int, int] = {}
        for row in rows.tolist():
            thread = int(self.trace.thread_ids[row])
            if self.trace.starts[row] >= ended_ns.get(thread, -1):
                kept.append(row)
                ended_ns[thread] = int(self.trace.ends[row])
        return np.array(kept, dtype=np.int64)

    @cached_property
    def loader(self) -> Intervals:
        """When the host waited for the loader."""
        return self.trace.intervals(self.loader_rows)

    @cached_property
    def operators(self) -> Intervals:
        """When any host thread was inside an operator."""
        return self.trace.intervals(self.trace.rows(OPERATOR))

    @cached_property
    def host_compute(self) -> Intervals:
        """When any host thread was inside an operator that computes.

        Operators of autograd's engine do not count, because they enclose hooks that wait for communication, nor do
        those of c10d, which request collectives, and those of a fetch, which make the batch.
        """
        trace = self.trace
        rows = trace.rows_named(trace.rows(OPERATOR), lambda name: "::" in name and not name.startswith(_NOT_COMPUTING))
        for thread in np.unique(trace.thread_ids[self.loader_rows]).tolist():
            fetches = trace.intervals(self.loader_rows[trace.thread_ids[self.loader_rows] == thread])
            rows = rows[(trace.thread_ids[rows] != thread) | ~fetches.contains(trace.starts[rows])]
        return trace.intervals(rows)

    @cached_property
    def waits(self) -> Intervals:
        """When a host thread was blocked until the device was done with something."""
        return self.trace.intervals(self.wait_rows)

    @cached_property
    def wait_rows(self) -> Rows:
        """Calls that return only when the device is done with something, blocking copies among them."""
        calls = self.trace.rows_named(self.trace.rows(RUNTIME), WAIT_NAME.match)
        return np.sort(np.concatenate((calls, self.blocking_download_rows, self.blocking_upload_rows)))

    @cached_property
    def blocking_download_rows(self) -> Rows:
        """Calls that copied to the host and returned only after the copy, and so synchronized.

        A copy to ordinary memory is one even where it is called asynchronous.
        """
        calls, copies = self._copies(lambda name: "DtoH" in name)
        return np.sort(calls[self.trace.ends[copies] <= self.trace.ends[calls] + ROUNDING_NS])

    @cached_property
    def blocking_upload_rows(self) -> Rows:
        """Calls that copied from ordinary memory to the device and took most of the copy's time.

        Such a call returns once its last part is staged, some microseconds before the device is done with that part.
        """
        trace = self.trace
        calls, copies = self._copies(lambda name: "Pageable" in name and "DtoH" not in name)
        middle = trace.starts[copies] + trace.durations[copies] // 2
        return np.sort(calls[middle <= trace.ends[calls] + ROUNDING_NS])

    def _copies(self, is_wanted: Callable[[str], bool]) -> tuple[Rows, Rows]:
        """Return the calls that started copies of the wanted names, and the copies."""
        launches = self.launches
        is_copy = (self.trace.kinds[launches.device_rows] == MEMCPY) & (launches.runtime_rows >= 0)
        copies, calls = launches.device_rows[is_copy], launches.runtime_rows[is_copy]
        named = np.isin(copies, self.trace.rows_named(copies, is_wanted))
        return calls[named], copies[named]

    @cached_property
    def threads(self) -> dict[int, HostThread]:
        """The operators by host thread id."""
        return trees_by_thread(self.trace, self.trace.rows(OPERATOR))

    @cached_property
    def main_thread(self) -> int:
        """The thread that trains: that of the steps, fetches or optimizer, else of most operators; -1 for none."""
        if self.steps.host_thread >= 0:
            return self.steps.host_thread
        trace = self.trace
        marks = trace.rows_named(trace.rows(ANNOTATION, OPERATOR), lambda name: name.startswith("Optimizer."))
        for rows in (self.loader_rows, marks):
            if len(rows):
                return int(np.bincount(trace.thread_ids[rows]).argmax())
        return max(self.threads, key=lambda thread: int((self.threads[thread].tree.parents < 0).sum()), default=-1)

    @cached_property
    def top_operators(self) -> Rows:
        """Operators that no operator called, in time order."""
        rows = [thread.rows[thread.tree.parents < 0] for thread in self.threads.values()]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)

    @cached_property
    def main_operators(self) -> Rows:
        """Operators of the thread that trains that no operator called, in time order."""
        found: Rows = self.top_operators[self.trace.thread_ids[self.top_operators] == self.main_thread]
        return found

    def operators_at(self, threads: npt.NDArray[Any], moments: Times) -> Rows:
        """Return for each thread and moment the row of the innermost operator, -1 for none."""
        return innermost_at(self.threads, threads, moments)

    @cached_property
    def operator_of_work(self) -> Rows:
        """For each piece of device work (in order) the operator that launched it; -1 for none."""
        calls, trace = self.launches.runtime_rows, self.trace
        return np.where(calls >= 0, self.operators_at(trace.thread_ids[calls], trace.starts[calls]), -1)

    @cached_property
    def has_stacks(self) -> bool:
        """Whether Python calls were recorded."""
        return len(self.trace.rows(PYTHON)) > 0 or any(each.stack for each in self.trace.details.values())
