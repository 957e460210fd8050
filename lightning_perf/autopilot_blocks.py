"""The blocks that the autopilot compares, some steps or one epoch: their times, and the time that a treatment lost."""

import random
import statistics
from typing import Any, Literal

import numpy as np

from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.probes.timeline.step_aggregator import time_with_boundaries_s, usual_steps_s
from lightning_perf.records import AutopilotTry
from lightning_perf.stats.sequential import BlockTrial

PRECHECK_STEPS = 2
"""Measured steps of a treatment's first block, which only finds whether it is much slower."""

Unit = Literal["step", "epoch"]


class TreatmentTry:
    """The treatment that is being tried.

    Args:
        record: What is known of the try so far.
        rng: Draws the order of blocks.
        usual_s: Seconds of a usual step before the treatment.
        discarded: Steps of a block that do not count, besides the one that switched.
        period: Batches per optimizer step.
        keeps_workers: Whether an epoch that follows a switch does not count, because it starts new workers.
    """

    def __init__(
        self, record: AutopilotTry, rng: random.Random, usual_s: float, discarded: int, period: int, keeps_workers: bool
    ) -> None:
        self.record, self.usual_s, self.discarded, self.period = record, usual_s, discarded, period
        is_epoch = record.unit == "epoch"
        self.blocks = BlockTrial(rng, *((1, 20) if is_epoch else ()))
        self.keeps_workers, self.is_settling, self.is_precheck = keeps_workers, False, not is_epoch
        self.slow_s: float | None = None  # the fastest step of the first block, if it was slow
        self.settling_s: float | None = None  # per step, in the epoch before the block
        self.n_blocks = self.steps_per_block = 0
        self._other_lost_s = 0.0

    def precheck(self, least_s: float | None, slow_factor: float) -> float:
        """Add a first block; return its slowdown as a factor: 0 if it was not slower than usual, or not known yet.

        After a slow one, a block without the treatment follows: another program may have slowed down both.
        """
        if self.slow_s is None and least_s is not None:
            self._other_lost_s = max(0.0, least_s - self.usual_s) * (self.discarded + PRECHECK_STEPS)
            if least_s > slow_factor * self.usual_s:
                self.slow_s = least_s
                return 0.0
        self.is_precheck = False
        return self.slow_s / max(self.usual_s, least_s or 0.0) if self.slow_s is not None else 0.0

    def add(self, mean_s: float | None) -> None:
        """Add a block with its time per step; None if nothing was measured in it."""
        if self.settling_s is not None and mean_s is not None:  # starting its workers took this
            self._other_lost_s += max(0.0, self.settling_s - max(mean_s, self.usual_s)) * self.steps_per_block
        self.settling_s = None
        self.blocks.add(mean_s)

    def lose(self, seconds: float) -> None:
        """Add seconds lost in a block that ended early."""
        self._other_lost_s += seconds

    def lost_s(self) -> float:
        """Return the seconds lost so far; 0 if the treatment gained time."""
        return max(0.0, self._other_lost_s + self.blocks.lost_s_per_step * self.steps_per_block)


class BlockTimes:
    """Times of the current block's steps, from the probes of the run."""

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
        """Whether a block is being timed."""
        return self._mark is not None

    def begin(self, unit: Unit | None) -> None:
        """Begin a block; None stops timing."""
        self._unit = unit
        self.collect()  # closes the row before an epoch
        self._mark = self.main.mark() if self.main is not None and unit is not None else None
        self._rows, self._epoch_s, self._n_epoch_steps = [], 0.0, 0

    def collect(self) -> None:
        """Keep the steps measured so far, before they are aggregated; of an epoch only sums."""
        main = self.main
        if main is None or self._unit is None:
            return
        is_epoch = self._unit == "epoch"
        if is_epoch and not main.is_in_batch:
            main.close_record()  # time between two epochs belongs to the block before
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
            period: Batches per optimizer step. Each position in it has the same weight, even if steps are left out.
            is_least: Whether to return the least step.
        """
        found = usual_steps_s(np.concatenate(self._rows), n_left_out) if self._rows else {}
        if is_least or not found:
            return min(found.values(), default=None)
        alike = [[taken_s for place, taken_s in found.items() if place % period == n] for n in range(period)]
        return statistics.fmean(statistics.fmean(each) for each in alike if each)

    def overtime_s(self, usual_s: float) -> float:
        """Return by how many seconds the steps of the block exceed as many usual ones."""
        found = usual_steps_s(np.concatenate(self._rows), 0) if self._rows else {}
        return sum(found.values()) - len(found) * usual_s

    def epoch_mean(self) -> tuple[float | None, int]:
        """Return the seconds per step of the epoch (None without steps) and its number of steps.

        The time includes the epoch boundary, but neither validation nor checkpoints.
        """
        n_steps = self._n_epoch_steps
        return (self._epoch_s / n_steps if n_steps else None), n_steps
