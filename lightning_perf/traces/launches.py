"""Join device work with the host's calls that enqueued it."""

import dataclasses

import numpy as np

from .columns import Trace
from .intervals import Times
from .kinds import KERNEL, MEMCPY, MEMSET, RUNTIME
from .nesting import Rows


@dataclasses.dataclass(frozen=True)
class Launches:
    """Device work, and the runtime calls that enqueued it.

    Attributes:
        device_rows: Kernels, copies and memsets, in time order.
        runtime_rows: Row of the call that enqueued each; -1 if unknown.
    """

    device_rows: Rows
    runtime_rows: Rows

    def times(self, trace: Trace) -> Times:
        """Return when each was enqueued; if unknown, when it ran."""
        known = self.runtime_rows >= 0
        return np.where(known, trace.starts[self.runtime_rows], trace.starts[self.device_rows])


def find_launches(trace: Trace) -> Launches:
    """Join device work with the calls that enqueued it, by correlation id."""
    device_rows = trace.rows(KERNEL, MEMCPY, MEMSET)
    calls = trace.rows(RUNTIME)
    calls = calls[trace.correlations[calls] > 0]
    if not len(calls) or not len(device_rows):
        return Launches(device_rows, np.full(len(device_rows), -1, dtype=np.int64))
    order = np.argsort(trace.correlations[calls], kind="stable")
    calls = calls[order]
    ids = trace.correlations[calls]
    wanted = trace.correlations[device_rows]
    index = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return Launches(device_rows, np.where((ids[index] == wanted) & (wanted > 0), calls[index], -1))
