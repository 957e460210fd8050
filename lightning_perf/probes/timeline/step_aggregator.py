"""Add up the steps of a stage in constant memory."""

import heapq
from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from lightning_perf.probes.model.tokens import UnitTotals
from lightning_perf.records import PHASES, STEP_PHASES, Block, Epoch, Fetch, Outliers, PhaseTime, SlowStep, StageTimes
from lightning_perf.stats.quantiles import LogHistograms, Moments
from lightning_perf.stats.steady import halves_agree

from .spans import N_COLUMNS, N_PHASES, OWN, PHASE_INDEX

# A row holds N_COLUMNS nanoseconds, then these.
KIND, SAMPLES, TOKENS, EPOCH = N_COLUMNS, N_COLUMNS + 1, N_COLUMNS + 2, N_COLUMNS + 3
RECORD_WIDTH = N_COLUMNS + 4

NOT_A_STEP, USUAL_STEP, FIRST_STEP, LEFT_OUT_STEP, LEFT_OUT_TIME = 0, 1, 2, 3, 4
"""Kinds of rows: time between steps; a step; the first step of an epoch, which medians exclude; a step and time between
steps that all statistics exclude, because a profiler window or a probe made it longer."""

STEP_COLUMNS = [PHASE_INDEX[name] for name in STEP_PHASES]
WAIT = PHASE_INDEX["data_wait"]
_BOUNDARY = PHASE_INDEX["epoch_boundary"]
CALLBACKS = PHASE_INDEX["callbacks"]
_SERIES = {column: series for series, column in enumerate(STEP_COLUMNS)}
_STEP_SERIES = len(STEP_COLUMNS)  # the last histogram is that of the whole step

SLOW_FACTOR = 3.0  # a step this many times the median is an outlier (PD606)
WAITING_FRACTION = 0.1  # a fetch that blocks for more than this share of the median step is a wait
_MIN_STEPS_FOR_OUTLIERS = 20
_MAX_OUTLIERS_LISTED = 10
_MIN_WAITS_FOR_BURSTS = 8
_MAX_BLOCKS = 512
_FIRST_BLOCK_STEPS = 4
_RECENT_FETCHES = 2048


def are_usual(kinds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows hold a step that statistics describe: usual ones, or if each epoch has one batch, its steps."""
    usual = np.asarray(kinds == USUAL_STEP)
    return usual if usual.any() else np.asarray(kinds == FIRST_STEP)


def are_steps(kinds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows hold a step of any kind."""
    return np.asarray((kinds != NOT_A_STEP) & (kinds != LEFT_OUT_TIME))


class StepAggregator:
    """Sums, quantiles, outliers and timeline of the steps of one stage.

    ``first_step`` is the index of the first step to be added, ``start_ns`` its start; both count from the start of the
    run. With ``has_single_batches``, each epoch had one batch so far: its step counts as usual, and its fetch as
    epoch boundary, since no batch can be prefetched.
    """

    def __init__(self, first_step: int = 0, start_ns: int = 0, has_single_batches: bool = False) -> None:
        self._has_single_batches = has_single_batches
        self.n_steps = self._n_first_steps = 0
        self.span_ns = 0
        self.units = UnitTotals()
        self.phase_ns = np.zeros(N_PHASES, dtype=np.int64)
        self.outlier_ns = self.own_ns = 0
        self._first_step = first_step
        self._n_step_rows = 0
        self._now_ns = start_ns
        self._histograms = LogHistograms(len(STEP_COLUMNS) + 1)
        self._own = LogHistograms(1)
        self._steps, self._waits = Moments(), Moments()
        self._recent_waits: deque[int] = deque(maxlen=_RECENT_FETCHES)
        self._n_waiting = 0
        self._first_waits: deque[int] = deque(maxlen=64)
        self._most_samples = self._n_smaller = 0  # the latter: steps with fewer samples, or unknown
        self._n_outliers = 0
        self._outlier_phase_ns: Counter[int] = Counter()
        self._worst: list[tuple[int, int, int, int]] = []
        self._blocks = _Blocks()

    def add(self, rows: NDArray[np.int64]) -> None:
        """Add rows in order; shape (rows, RECORD_WIDTH)."""
        if len(rows) == 0:
            return
        kinds = rows[:, KIND]
        is_step = are_steps(kinds)
        usual = kinds == USUAL_STEP
        if self._has_single_batches:
            usual |= kinds == FIRST_STEP
        counted = kinds < LEFT_OUT_STEP
        phases = self._with_first_fetches_moved(rows[:, :N_PHASES].copy(), kinds, usual)
        row_ns = phases.sum(axis=1)
        step_ns = phases[:, STEP_COLUMNS].sum(axis=1)
        numbers = self._first_step + self._n_step_rows + np.cumsum(is_step) - 1
        self._add_outliers(phases[usual], step_ns[usual], numbers[usual])
        self._histograms.add(np.column_stack([phases[usual][:, STEP_COLUMNS], step_ns[usual]]))
        self._own.add(rows[usual, OWN][:, None])
        waits = phases[usual, WAIT]
        self._steps.add(step_ns[usual])
        self._waits.add(waits)
        self._recent_waits.extend(waits.tolist())
        self._first_waits.extend(rows[kinds == FIRST_STEP, WAIT].tolist())
        median_step = self._median(_STEP_SERIES)
        self._n_waiting += int((waits > WAITING_FRACTION * median_step).sum())
        starts = self._now_ns + np.cumsum(row_ns) - row_ns
        self._blocks.add(numbers[usual], starts[usual], step_ns[usual], phases[usual])
        self.n_steps += int(usual.sum())
        self._n_first_steps += int(((kinds == FIRST_STEP) & ~usual).sum())
        samples = rows[usual, SAMPLES]
        self._most_samples = max(self._most_samples, int(samples.max(initial=0)))
        self._n_smaller += int((samples < self._most_samples).sum())
        self._n_step_rows += int(is_step.sum())
        self._now_ns += int(row_ns.sum())
        self.span_ns += int(row_ns[counted].sum())
        self.own_ns += int(rows[counted, OWN].sum())
        self.phase_ns += phases[counted].sum(axis=0)
        self.units.add(rows[is_step & counted, SAMPLES:EPOCH])

    def step_median_s(self) -> float | None:
        """Return the median step; None without steps."""
        return self._median(_STEP_SERIES) / 1e9 if self.n_steps else None

    def own_median_ns(self) -> float:
        """Return the time of PerfDoctor's own hooks in a usual step; 0 without steps."""
        return self._own.quantiles(0, (0.5,))[0] if self.n_steps else 0.0

    def stage_times(self, n_warmup_steps: int) -> StageTimes | None:
        """Return the record without names, device and garbage collector; None without steps."""
        if self.n_steps == 0:
            return None
        span_s = self.span_ns / 1e9
        samples, tokens = self.units.totals
        return StageTimes(
            n_steps=self.n_steps,
            n_first_steps=self._n_first_steps,
            n_warmup_steps=n_warmup_steps,
            span_s=span_s,
            step_s=self._steps.distribution(self._histograms, _STEP_SERIES),
            samples_per_s=samples / span_s if samples and span_s > 0 else None,
            tokens_per_s=tokens / span_s if tokens and span_s > 0 else None,
            phases={name: self._phase(index, span_s) for name, index in PHASE_INDEX.items() if self.phase_ns[index]},
            fetch=self._fetch(),
            outliers=self._outliers(span_s),
            timeline=self._blocks.records(),
            own_s=self.own_ns / 1e9,
            is_steady=self._blocks.is_steady(),
        )

    def _median(self, series: int) -> float:
        return self._histograms.quantiles(series, (0.5,))[0]

    def _with_first_fetches_moved(
        self, phases: NDArray[np.int64], kinds: NDArray[np.int64], usual: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Count what an epoch's first fetch takes beyond a usual one (starting workers) as epoch boundary."""
        first = (kinds == FIRST_STEP) | ((kinds == NOT_A_STEP) & (phases[:, _BOUNDARY] > 0))
        if first.any():
            if self._has_single_batches:
                typical = 0
            elif usual.any():
                typical = int(np.median(phases[usual, WAIT]))
            else:
                typical = int(self._median(_SERIES[WAIT])) if self._histograms.n else 0
            excess = np.where(first, np.maximum(phases[:, WAIT] - typical, 0), 0)
            phases[:, WAIT] -= excess
            phases[:, _BOUNDARY] += excess
        return phases

    def _add_outliers(self, phases: NDArray[np.int64], step_ns: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        if len(step_ns) == 0:
            return
        is_known = self._histograms.n >= _MIN_STEPS_FOR_OUTLIERS
        median = self._median(_STEP_SERIES) if is_known else float(np.median(step_ns))
        slow = np.flatnonzero(step_ns > SLOW_FACTOR * median)
        if len(slow) == 0:
            return
        step_phases = phases[:, STEP_COLUMNS]
        growth = step_phases[slow] - np.median(step_phases, axis=0)
        grown_most = np.array(STEP_COLUMNS)[growth.argmax(axis=1)].tolist()
        excess_ns = (step_ns[slow] - median).astype(np.int64).tolist()
        self._n_outliers += len(slow)
        self.outlier_ns += sum(excess_ns)
        for phase, ns in zip(grown_most, excess_ns, strict=True):
            self._outlier_phase_ns[phase] += ns
        found = zip(step_ns[slow].tolist(), numbers[slow].tolist(), excess_ns, grown_most, strict=True)
        self._worst = heapq.nlargest(_MAX_OUTLIERS_LISTED, (*self._worst, *found))

    def _phase(self, index: int, span_s: float) -> PhaseTime:
        total_s = float(self.phase_ns[index]) / 1e9
        if index not in STEP_COLUMNS:
            return PhaseTime(total_s=total_s, share=total_s / span_s)
        smaller = self._n_smaller / self.n_steps  # these steps may be the fastest
        fastest = min(0.1, smaller + 0.01 * (1 - smaller))
        quantiles = self._histograms.quantiles(_SERIES[index], (fastest, 0.1, 0.5, 0.95))
        p01, p10, p50, p95 = (ns / 1e9 for ns in quantiles)
        return PhaseTime(total_s=total_s, share=total_s / span_s, p50_s=p50, p95_s=p95, p10_s=p10, p01_s=p01)

    def _fetch(self) -> Fetch:
        p50, p90 = self._histograms.quantiles(_SERIES[WAIT], (0.5, 0.9))
        recent = np.fromiter(self._recent_waits, dtype=np.int64)
        period, fraction = _bursts(recent > WAITING_FRACTION * self._median(_STEP_SERIES))
        return Fetch(
            n=self.n_steps,
            wait_s=self._waits.distribution(self._histograms, _SERIES[WAIT]),
            p90_over_p50=p90 / p50 if p50 > 0 else None,
            waiting_fraction=self._n_waiting / self.n_steps,
            burst_period=period,
            burst_fraction=fraction,
            first_s=tuple(ns / 1e9 for ns in self._first_waits),
        )

    def _outliers(self, span_s: float) -> Outliers | None:
        if self.n_steps < _MIN_STEPS_FOR_OUTLIERS:
            return None
        return Outliers(
            n=self._n_outliers,
            excess_s=self.outlier_ns / 1e9,
            share=self.outlier_ns / 1e9 / span_s,
            threshold_s=SLOW_FACTOR * self._median(_STEP_SERIES) / 1e9,
            excess_by_phase_s={PHASES[p]: ns / 1e9 for p, ns in self._outlier_phase_ns.items()},
            worst=tuple(
                SlowStep(step=step, duration_s=duration / 1e9, excess_s=excess / 1e9, phase=PHASES[phase])
                for duration, step, excess, phase in self._worst
            ),
        )


def _bursts(is_waiting: NDArray[np.bool_]) -> tuple[int | None, float | None]:
    """Return the most frequent distance between successive waits, and the share of waits at that distance."""
    positions = np.flatnonzero(is_waiting)
    if len(positions) < _MIN_WAITS_FOR_BURSTS:
        return None, None
    distances = np.diff(positions)
    counts = np.bincount(distances)
    period = int(counts.argmax())
    return period, float(counts[period] / len(distances))


class _Blocks:
    """The timeline: blocks of equally many steps. Their size doubles whenever there are too many."""

    def __init__(self) -> None:
        self._steps_per_block = _FIRST_BLOCK_STEPS
        # Columns: first step, steps, start ns, sum of step ns, slowest step ns, then the sums of the step's phases.
        self._table = np.zeros((0, 5 + len(STEP_COLUMNS)))

    def add(
        self,
        numbers: NDArray[np.int64],
        starts_ns: NDArray[np.int64],
        step_ns: NDArray[np.int64],
        phases: NDArray[np.int64],
    ) -> None:
        ones = np.ones(len(numbers))  # which make all columns floats
        fresh = np.column_stack([numbers, ones, starts_ns, step_ns, step_ns, phases[:, STEP_COLUMNS]])
        if len(self._table) and self._table[-1, 1] < self._steps_per_block:
            lacking = int(self._steps_per_block - self._table[-1, 1])
            self._table[-1:] = _merged(np.vstack([self._table[-1:], fresh[:lacking]]), lacking + 1)
            fresh = fresh[lacking:]
        if len(fresh):
            self._table = np.vstack([self._table, _merged(fresh, self._steps_per_block)])
        while len(self._table) > _MAX_BLOCKS:
            self._steps_per_block *= 2
            self._table = _merged(self._table, 2)

    def is_steady(self) -> bool | None:
        """Return whether both halves agree; None with fewer than 20 steps."""
        if len(self._table) < 2 or self._table[:, 1].sum() < _MIN_STEPS_FOR_OUTLIERS:
            return None
        return halves_agree(self._table[:, 3] / self._table[:, 1])

    def records(self) -> tuple[Block, ...]:
        return tuple(
            Block(
                first_step=int(row[0]),
                n_steps=int(row[1]),
                start_s=row[2] / 1e9,
                step_s=row[3] / row[1] / 1e9,
                max_step_s=row[4] / 1e9,
                phases={name: value / row[1] / 1e9 for name, value in zip(STEP_PHASES, row[5:], strict=True)},
            )
            for row in self._table.tolist()
        )


def _merged(rows: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return one row for each ``size`` rows."""
    firsts = np.arange(0, len(rows), size)
    total = np.add.reduceat(rows, firsts)
    total[:, [0, 2]] = rows[firsts][:, [0, 2]]
    total[:, 4] = np.maximum.reduceat(rows[:, 4], firsts)
    return np.asarray(total)


class EpochAggregator:
    """Sums of the rows of one epoch."""

    def __init__(self) -> None:
        self.n_steps = 0
        self.boundary_ns = 0
        """Time of the rows after its last step."""
        self._rows_ns = np.zeros(N_PHASES, dtype=np.int64)
        self.units = UnitTotals()
        self._step_ns = LogHistograms(1)
        self._first_fetch_ns: int | None = None

    def add(self, rows: NDArray[np.int64]) -> None:
        """Add rows of this epoch; shape (rows, RECORD_WIDTH)."""
        is_step = are_steps(rows[:, KIND])
        self._rows_ns += rows[:, :N_PHASES].sum(axis=0)
        # Measuring and reporting between epochs is PerfDoctor's own pause, not the time of a callback.
        self._rows_ns[CALLBACKS] -= rows[rows[:, KIND] == LEFT_OUT_TIME, OWN].sum()
        self.n_steps += int(is_step.sum())
        usual = rows[rows[:, KIND] == USUAL_STEP]
        self._step_ns.add(usual[:, STEP_COLUMNS].sum(axis=1, keepdims=True))
        if is_step.any():
            self.boundary_ns = 0
        after = rows[int(np.flatnonzero(is_step)[-1]) + 1 :] if is_step.any() else rows
        self.boundary_ns += int(after[after[:, KIND] == NOT_A_STEP, :N_PHASES].sum())
        self.units.add(rows[is_step, SAMPLES:EPOCH])
        first = np.flatnonzero(rows[:, KIND] == FIRST_STEP)
        if len(first):
            self._first_fetch_ns = int(rows[first[0], WAIT])

    def record(self, index: int) -> Epoch | None:
        """Return the epoch's record; None if it took no time."""
        total_ns = int(self._rows_ns.sum())
        if total_ns == 0:
            return None
        median = self._step_ns.quantiles(0, (0.5,))[0] if self._step_ns.n else None
        first = self._first_fetch_ns
        return Epoch(
            index=index,
            n_steps=self.n_steps,
            wall_s=total_ns / 1e9,
            phases={name: float(self._rows_ns[i]) / 1e9 for name, i in PHASE_INDEX.items() if self._rows_ns[i]},
            samples=self.units.totals[0],
            tokens=self.units.totals[1] or None,
            step_p50_s=None if median is None else median / 1e9,
            first_fetch_s=None if first is None else first / 1e9,
        )


def usual_steps_s(rows: NDArray[np.int64], n_left_out: int) -> dict[int, float]:
    """Return the seconds of each usual step by its place after the first ``n_left_out`` steps."""
    steps = rows[are_steps(rows[:, KIND])][n_left_out:]
    taken_s = steps[:, STEP_COLUMNS].sum(axis=1) / 1e9
    return {int(place): float(taken_s[place]) for place in np.flatnonzero(are_usual(steps[:, KIND]))}


def time_with_boundaries_s(rows: NDArray[np.int64]) -> tuple[float, int]:
    """Return the seconds of steps and epoch boundaries, without validation and checkpoints, and the number of steps."""
    counted = rows[(rows[:, KIND] != LEFT_OUT_STEP) & (rows[:, KIND] != LEFT_OUT_TIME)]
    columns = [i for i in range(N_PHASES) if i not in (PHASE_INDEX["validation"], PHASE_INDEX["checkpoint"])]
    return float(counted[:, columns].sum() / 1e9), int(are_steps(counted[:, KIND]).sum())
