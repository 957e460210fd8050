"""Times the blocks that the autopilot compares: some steps, or one epoch."""

from __future__ import annotations

import statistics
from typing import Any, Literal

import numpy as np

from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.probes.step_aggregator import time_with_boundaries_s, usual_steps_s

Unit = Literal["step", "epoch"]


class BlockTimes:
    """Steps of the block under way, as the probes of the run time them."""

    def __init__(self, probes: ProbeSet) -> None:
        self._probes = probes
        self._unit: Unit | None = None
        self._mark: Any = None
        self._rows: list[Any] = []
        self._epoch_s, self._n_epoch_steps = 0.0, 0

    @property
    def main(self) -> Any:
        """The probe of training steps; None if it is off."""
        return self._probes.loop.main if self._probes.loop is not None else None

    @property
    def is_on(self) -> bool:
        """Whether a block is under way."""
        return self._mark is not None

    def begin(self, unit: Unit | None) -> None:
        """Begin a block; None to measure no more."""
        self._unit = unit
        self.collect()  # closes the row before an epoch
        self._mark = self.main.mark() if self.main is not None and unit is not None else None
        self._rows, self._epoch_s, self._n_epoch_steps = [], 0.0, 0

    def collect(self) -> None:
        """Keep the steps measured so far, before others aggregate them; of an epoch only sums."""
        main = self.main
        if main is None or self._unit is None:
            return
        is_epoch = self._unit == "epoch"
        if is_epoch and not main.is_in_batch:
            main.close_record()  # what came before this moment, between two epochs, is of the block before
        if self._mark is None:
            return
        rows, self._mark = main.rows_since(self._mark), main.mark()
        if not is_epoch:
            self._rows.append(rows)
            return
        taken_s, n_steps = time_with_boundaries_s(rows)
        self._epoch_s += taken_s
        self._n_epoch_steps += n_steps

    def step_mean(self, n_left_out: int, period: int, is_least: bool) -> float | None:
        """Return the mean usual step in seconds, or the least one; None without one.

        Args:
            n_left_out: First steps, which do not count: the one that switched, and those after it.
            period: Batches per optimizer step. Each place in it counts the same, also where single steps are left out.
            is_least: Whether to return the least step.
        """
        found = usual_steps_s(np.concatenate(self._rows), n_left_out) if self._rows else {}
        if is_least or not found:
            return min(found.values(), default=None)
        alike = [[taken_s for place, taken_s in found.items() if place % period == n] for n in range(period)]
        return statistics.fmean(statistics.fmean(each) for each in alike if each)

    def epoch_mean(self) -> tuple[float | None, int]:
        """Return the time per step of the epoch, with its boundary and without validation and checkpoints, and steps.

        The time is None without steps.
        """
        n_steps = self._n_epoch_steps
        return (self._epoch_s / n_steps if n_steps else None), n_steps
