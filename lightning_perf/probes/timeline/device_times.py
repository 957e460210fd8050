"""Add up the steps that the device's clock measured, in constant memory."""

import numpy as np
from numpy.typing import NDArray

from lightning_perf.probes.clock import DeviceClock
from lightning_perf.records import DeviceTimes
from lightning_perf.stats.quantiles import LogHistograms, Moments


class DeviceAggregator:
    """Sums of what the device clock resolved: of all steps, and of those measured at the same rate in the whole run."""

    def __init__(self) -> None:
        self._all, self._regular = _DeviceSums(), _DeviceSums()

    def add(self, resolved: list[tuple[int, int, bool]]) -> None:
        if resolved:
            rows = np.array(resolved, dtype=np.int64)
            self._all.add(rows)
            regular = rows[rows[:, 2] != 0]
            if len(regular):
                self._regular.add(regular)

    def record(self, clock: DeviceClock) -> DeviceTimes | None:
        """Return the times of all steps, or of the regular ones if the clock left some out: all count alike then."""
        return (self._regular if clock.leaves_out else self._all).record(clock.backend)


class _DeviceSums:
    """Sums of (step, starved) nanoseconds."""

    def __init__(self) -> None:
        self._starved_s = 0.0
        self._steps = Moments()
        self._histogram = LogHistograms(1)

    def add(self, pairs: NDArray[np.int64]) -> None:
        steps = np.maximum(pairs[:, 0], 0)
        self._steps.add(steps)
        self._starved_s += float(np.clip(pairs[:, 1], 0, steps).sum()) / 1e9
        self._histogram.add(steps[:, None])

    def record(self, backend: str) -> DeviceTimes | None:
        total_s = self._steps.total_s
        if total_s == 0:
            return None
        return DeviceTimes(
            n=self._steps.n,
            starved_s=self._starved_s,
            starved_share=self._starved_s / total_s,
            busy_s=total_s - self._starved_s,
            step_s=self._steps.distribution(self._histogram, 0),
            backend=backend,
        )
