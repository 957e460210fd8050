"""Divide a stage into steps and record the time of each phase."""

from __future__ import annotations

import statistics
import struct
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes.clock import DeviceClock
from lightning_perf.probes.model.tokens import BatchUnits
from lightning_perf.records import DeviceTimes, Epoch, StageTimes
from lightning_perf.stats.steady import warmup_length

from .device_times import DeviceAggregator
from .spans import N_COLUMNS, N_PHASES, OWN, NullSpan, Span, Timeline
from .step_aggregator import (
    CALLBACKS,
    EPOCH,
    FIRST_STEP,
    KIND,
    LEFT_OUT_STEP,
    LEFT_OUT_TIME,
    NOT_A_STEP,
    RECORD_WIDTH,
    STEP_COLUMNS,
    USUAL_STEP,
    WAIT,
    EpochAggregator,
    StepAggregator,
    are_steps,
)

RECORDS_BEFORE_FIRST_AGGREGATION = 256
"""Rows kept before the first aggregation, which determines the end of the warm-up."""

RECORDS_BEFORE_AGGREGATION = 2048
"""Rows kept before each later aggregation. Its fixed cost is shared by all rows aggregated at once."""

_MAX_BATCH_TYPES = 8
_MAX_EPOCHS = 1000
_RECENT_STEPS = 32


class StageTimer:
    """The steps of one stage.

    A row is the time from a step's first fetch to the next step's, by phase. Rows have no gaps or overlap: they add up
    to the wall time of the stage. ``phase_ns`` counts the row under way, by phase; None for the timeline's own
    counters. ``own`` is the span of PerfDoctor's own time; None if a span around the step's end accounts for it.
    """

    def __init__(
        self,
        timeline: Timeline,
        device_clock: DeviceClock | None = None,
        phase_ns: list[int] | None = None,
        own: Span | None = None,
        units: BatchUnits | None = None,
    ) -> None:
        self._own = own if own is not None else NullSpan()
        self.timeline = timeline
        self.phase_ns = timeline.phase_ns if phase_ns is None else phase_ns
        self.first_step_ns: tuple[int, ...] | None = None
        """Phases of the run's first step; None until it ends, and if it was in a profiler window."""
        self.device_clock = device_clock
        self.n_steps = 0
        self.epoch = 0
        self.epochs: list[Epoch] = []
        self._rows = array("q")
        self._aggregate_at = RECORDS_BEFORE_FIRST_AGGREGATION * RECORD_WIDTH
        self._aggregator: StepAggregator | None = None  # none until the warm-up is known
        self._n_warmup_steps = 0
        self._record_has_step = False
        self._is_record_fresh = False
        self.is_in_batch = False
        self._is_first_of_epoch = True
        self._is_profiled = self._was_profiled = False
        self.is_left_out = False
        """Whether the current row is excluded from all statistics."""
        self.on_left_out: Callable[[bool], None] = lambda is_on: None
        """Called where excluded time begins (True) and where it ends (False)."""
        self._was_left_out = False  # the row before the one under way
        self._is_first_step_profiled = False
        self._has_begun_first_step = False
        self._units = units if units is not None else BatchUnits()
        self._samples = self._tokens = -1
        self._size_of: Callable[[Any], int] = len  # never called before a batch type is known
        self._tokens_of: Callable[[Any], int] | None = None
        self._batch_type: type | None = None
        self._readers: dict[type, tuple[Callable[[Any], int], Callable[[Any], int] | None]] = {}
        """Readers of the samples and the tokens of a batch, by its type: a search can cost milliseconds."""
        self._device = DeviceAggregator()
        self._epoch = EpochAggregator()
        self._summed_rows = 0
        self._n_epochs = 0
        self._last_counted_epoch: int | None = None

    # -- events of the loop, in order ---------------------------------------------------------------------------------

    def fetch_begins(self) -> bool:
        """Begin a row at a fetch of the loop; return whether ``fetch_ends`` must be called.

        A fetch inside a step begins no row. An unsized loader is read one batch ahead: the first two fetches of an
        epoch share a row.
        """
        if self.is_in_batch:
            self._samples = self._tokens = -1  # the step began with the last step's batch
        elif not (self._is_record_fresh and self._is_first_of_epoch):
            self.close_record()
            self._is_record_fresh = True
        return self.device_clock is not None and self.device_clock.before_fetch()

    def fetch_ends(self) -> None:
        """Handle the end of a fetch, with a batch or an exhausted loader."""
        if self.device_clock is not None:
            # The device's step is the time between fetches: work of the last row, waiting of this one.
            is_left_out = self.is_left_out or self._was_left_out
            self.device_clock.after_fetch(not (self._is_first_of_epoch or is_left_out))

    def batch_begins(self, batch: Any) -> None:
        """Begin a step, and a row if no fetch came before."""
        if not self._is_record_fresh:
            self.close_record()
        self._is_record_fresh = False
        self.is_in_batch = True
        self._record_has_step = True
        try:
            if type(batch) is self._batch_type:
                self._samples = self._size_of(batch)  # inlined: one call less per step
                self._tokens = -1 if self._tokens_of is None else self._tokens_of(batch)
                return
        except Exception as error:  # noqa: BLE001 - a batch of another structure: read again
            raise_if_from_signal(error)
        self._read_units(batch)

    def batch_ends(self, batch: Any = None) -> None:
        """End the step; time until the next row still belongs to its row.

        ``batch`` gives the batch size where the step fetched the batch itself.
        """
        if not self.is_in_batch:  # the loader returned None: no step began
            return
        self.is_in_batch = False
        if self._samples < 0 and batch is not None:
            self._read_units(batch)
        self.n_steps += 1
        if len(self._rows) >= self._aggregate_at:
            with self._own:
                self.aggregate()

    def epoch_ends(self) -> None:
        """End the epoch's steps; the time that follows is epoch boundary."""
        if self.is_in_batch:  # on_train_batch_start returned -1: this step never ran
            self._record_has_step = False
        self.is_in_batch = self._is_record_fresh = False
        self.close_record()
        self._is_first_of_epoch = True
        self.pause()

    def epoch_begins(self, index: int) -> None:
        self.close_record()
        self._close_epoch()
        self.epoch = index

    def profiling(self, is_on: bool) -> None:
        """Open or close a profiler window; its rows are excluded from all statistics."""
        self._is_profiled = is_on
        self.leave_out()
        if not self._has_begun_first_step:
            self._is_first_step_profiled = True
        self.pause()

    def leave_out(self) -> None:
        """Exclude the current row from all statistics, because PerfDoctor makes it longer."""
        self._set_left_out(True)

    def reporting(self, is_on: bool) -> None:
        """Begin or end PerfDoctor's own reporting between epochs, which is not training time."""
        self.close_record()  # time of other callbacks before this is training time
        if is_on:
            self._was_profiled = self._is_profiled
        self._is_profiled = is_on or self._was_profiled
        self._set_left_out(self._is_profiled)

    def pause(self) -> None:
        """Discard pending device measurements: the epoch ends, or another stage runs inside this one."""
        if self.device_clock is not None:
            self.device_clock.forget()

    def stage_times(self) -> StageTimes | None:
        """Return the steps so far; None before the first steady one."""
        self.close_record()
        if self._aggregator is not None:
            self.aggregate()
            return self._aggregator.stage_times(self._n_warmup_steps)
        aggregator, n_warmup = self._skip_warmup(_as_matrix(self._rows))
        return aggregator.stage_times(n_warmup)

    def device_times(self) -> DeviceTimes | None:
        """Return the device's times of the resolved steps; None without a device clock or before the first."""
        if self.device_clock is None:
            return None
        resolved = self.device_clock.resolved
        device = self._device
        if self._aggregator is None:  # the warm-up may become longer: keep the resolved steps
            _, n_warmup = self._skip_warmup(_as_matrix(self._rows))
            device = DeviceAggregator()
            device.add(resolved[n_warmup:])
        else:
            device.add(resolved)
            resolved.clear()
        return device.record(self.device_clock)

    def recent_median_ns(self) -> float | None:
        """Return the median of the last few steps, or of all steps right after aggregation; None before the first."""
        usual_ns = self._recent_ns()
        if len(usual_ns) >= _RECENT_STEPS or (usual_ns and self._aggregator is None):
            return float(statistics.median(usual_ns[:_RECENT_STEPS]))
        median_s = self._aggregator.step_median_s() if self._aggregator is not None else None
        return None if median_s is None else median_s * 1e9

    def recent_slowest_ns(self) -> float | None:
        """Return the time of the slowest of the last few steps; None right after aggregation."""
        return max(self._recent_ns(), default=None)

    def _recent_ns(self) -> list[int]:
        # Without numpy, which takes a millisecond here because a training step evicts the caches.
        rows = self._rows
        first = max(-1, len(rows) - 2 * _RECENT_STEPS * RECORD_WIDTH - 1)
        begins = range(len(rows) - RECORD_WIDTH, first, -RECORD_WIDTH)
        return [sum(rows[i + column] for column in STEP_COLUMNS) for i in begins if rows[i + KIND] == USUAL_STEP]

    def recent_wait_share(self) -> float | None:
        """Return the share of data wait in the last steps; None before a step and right after aggregation."""
        rows = _as_matrix(self._rows[-2 * _RECENT_STEPS * RECORD_WIDTH :])
        usual = rows[rows[:, KIND] == USUAL_STEP]
        total_ns = int(usual[:, STEP_COLUMNS].sum())
        return int(usual[:, WAIT].sum()) / total_ns if total_ns else None

    def mark(self) -> tuple[array[int], int]:
        """Return a mark behind the rows closed so far, for `rows_since`."""
        return self._rows, len(self._rows)

    def rows_since(self, mark: tuple[array[int], int]) -> NDArray[np.int64]:
        """Return the rows closed since a mark, which must be no older than the last aggregation but one."""
        rows, first = mark
        return _as_matrix(rows[first:] if rows is self._rows else rows[first:] + self._rows)

    def own_median_ns(self) -> float:
        """Return the time of PerfDoctor's own hooks in a usual step; 0 before the first."""
        aggregator = self._aggregator or self._skip_warmup(_as_matrix(self._rows))[0]
        return aggregator.own_median_ns()

    def epochs_so_far(self) -> tuple[Epoch, ...]:
        """Return the epochs, including the current one."""
        self.close_record()
        self._sum_epoch()
        current = self._epoch.record(self.epoch)
        return (*self.epochs, current) if current else tuple(self.epochs)

    def epoch_samples(self) -> int | None:
        """Return the samples of the current epoch; None if unknown."""
        self.close_record()
        self._sum_epoch()
        return self._epoch.units.totals[0]

    def n_epochs(self) -> int:
        """Return the number of epochs with a step, including the current one and those no longer kept."""
        self.close_record()
        self._sum_epoch()
        return self._n_epochs + (self._epoch.n_steps > 0 and self.epoch != self._last_counted_epoch)

    def aggregate(self) -> None:
        """Move the kept rows to the aggregator."""
        self._sum_epoch()
        rows = _as_matrix(self._rows)
        if self._aggregator is None:
            self._aggregator, self._n_warmup_steps = self._skip_warmup(rows)
            if self.device_clock is not None:
                del self.device_clock.resolved[: self._n_warmup_steps]
        else:
            self._aggregator.add(rows)
        self._rows = array("q")
        self._aggregate_at = RECORDS_BEFORE_AGGREGATION * RECORD_WIDTH
        self._summed_rows = 0
        if self.device_clock is not None:
            self._device.add(self.device_clock.resolved)
            self.device_clock.resolved.clear()

    def close_record(self) -> None:
        """End the row under way; not within a step."""
        timeline = self.timeline
        now = timeline.now_ns()  # ``charge`` inlined: called at each step
        passed = now - timeline.last_ns
        timeline.current.ns += passed
        timeline.phase_ns[timeline.current.phase] += passed
        timeline.last_ns = now
        phase_ns = self.phase_ns
        phase_ns[CALLBACKS] += phase_ns[OWN]
        has_step, is_left_out = self._record_has_step, self.is_left_out
        samples, tokens = self._samples, self._tokens
        self._was_left_out = is_left_out
        if has_step:
            kind = LEFT_OUT_STEP if is_left_out else FIRST_STEP if self._is_first_of_epoch else USUAL_STEP
            self._record_has_step = self._is_first_of_epoch = False
            if not self._has_begun_first_step:
                self._has_begun_first_step = True
                self.first_step_ns = None if self._is_first_step_profiled else tuple(phase_ns[:N_PHASES])
        elif is_left_out:
            kind = LEFT_OUT_TIME
        else:
            kind, samples, tokens = NOT_A_STEP, 0, 0
        if is_left_out:
            self._set_left_out(self._is_profiled)
        self._rows.frombytes(_pack_record(*phase_ns, kind, samples, tokens, self.epoch))
        phase_ns[:] = _ZEROS

    def _set_left_out(self, is_left_out: bool) -> None:
        if self.is_left_out != is_left_out:
            self.is_left_out = is_left_out
            self.on_left_out(is_left_out)

    def _skip_warmup(self, rows: NDArray[np.int64]) -> tuple[StepAggregator, int]:
        """Return an aggregator of the rows that follow the warm-up, and the number of warm-up steps."""
        is_step = are_steps(rows[:, KIND])
        has_single_batches = int((rows[:, KIND] == FIRST_STEP).sum()) > 1 and not (rows[:, KIND] == USUAL_STEP).any()
        is_usual = rows[:, KIND] == (FIRST_STEP if has_single_batches else USUAL_STEP)
        steps_ns = rows[:, STEP_COLUMNS].sum(axis=1)
        positions = np.flatnonzero(is_usual)
        if has_single_batches:
            n_left_out = warmup_length(steps_ns[is_usual])
        else:  # the very first step is the first of its epoch and so no usual one: it is always part of the warm-up
            n_left_out = max(0, warmup_length(np.concatenate([[0], steps_ns[is_usual]])) - 1)
        start = int(positions[n_left_out]) if n_left_out < len(positions) else len(rows)
        n_warmup = int(is_step[:start].sum())
        aggregator = StepAggregator(n_warmup, int(rows[:start, :N_PHASES].sum()), has_single_batches)
        aggregator.add(rows[start:])
        return aggregator, n_warmup

    def _sum_epoch(self) -> None:
        rows = _as_matrix(self._rows)[self._summed_rows :]
        self._summed_rows += len(rows)
        rows = rows[rows[:, EPOCH] == self.epoch]
        if len(rows):
            self._epoch.add(rows)

    def _close_epoch(self) -> None:
        self._sum_epoch()
        record = self._epoch.record(self.epoch)
        if record is not None and (record.n_steps or self.epochs or self.n_steps):
            if record.n_steps:
                record = msgspec.structs.replace(record, boundary_s=self._epoch.boundary_ns / 1e9)
                self._n_epochs += record.index != self._last_counted_epoch
                self._last_counted_epoch = record.index
            self.epochs.append(record)
            del self.epochs[:-_MAX_EPOCHS]
            self._epoch = EpochAggregator()

    def _read_units(self, batch: Any) -> None:
        """Read the size of a batch whose structure may be new; -1 if unknown."""
        self._samples = self._tokens = -1
        if batch is None:
            return
        # Several loaders can yield batches of several kinds; indexing a tensor as a tuple would read a slice.
        kind = type(batch)
        for is_known in (True, False) if kind in self._readers else (False,):
            try:
                if not is_known:
                    if len(self._readers) >= _MAX_BATCH_TYPES:
                        self._readers.clear()
                    self._readers[kind] = self._units.sizes(batch), self._units.tokens(batch)
                self._size_of, self._tokens_of = self._readers[kind]
                self._batch_type = kind
                self._samples = self._size_of(batch)
                self._tokens = -1 if self._tokens_of is None else self._tokens_of(batch)
                return
            except Exception as error:  # noqa: BLE001 - the user's object, perhaps of another structure than before
                raise_if_from_signal(error)
                self._readers.pop(kind, None)
        self._batch_type = None


_ZEROS = [0] * N_COLUMNS

_pack_record = struct.Struct(f"{RECORD_WIDTH}q").pack
"""Pack a row into bytes: half the cost of appending its numbers to an array one by one."""


def _as_matrix(rows: array[int]) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(-1, RECORD_WIDTH)
