"""Measure a loader's throughput by number of workers: alone, and under a compute load like the training's."""

import contextlib
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lightning_perf.cgroups import free_bytes
from lightning_perf.records.loader_probe import MAX_WORKERS, MAX_WORKERS_PER_CORE, WorkerPoint

from .batch import mean_interval
from .load import Load
from .pipeline import Pipeline, Refused

KNEE = 0.95
"""Ratio of batch times above which doubling the workers no longer helps, and the curve ends."""
COMPUTE_BOUND = 0.5  # CPU seconds per second above which samples count as compute-bound
_MIN_ROUND_S, _MAX_ROUND_S = 0.25, 2.5
_MIN_ROUND_SHARE = 0.08  # of the time for the whole curve, where that is short
_LEAST_BLOCKS = 3
_LOADED_SHARE = 0.6  # of a round: computing beside the workers
_MIN_PREFETCH_ROUND_S = 0.1
_END = object()
_SHM_SHARE = 0.5  # of the free space in /dev/shm: the training needs the rest


class Setting(NamedTuple):
    """A number of workers and their prefetch factor; None without workers."""

    num_workers: int
    prefetch_factor: int | None


class _Times:
    """Seconds per batch, over all rounds of one setting."""

    def __init__(self) -> None:
        self.blocks_s: list[float] = []
        self.round_means_s: list[float] = []
        self.n_batches = 0
        self.seconds = 0.0

    @property
    def mean_s(self) -> float:
        return self.seconds / self.n_batches

    @property
    def is_certain(self) -> bool:
        """Whether there are enough blocks for an interval."""
        return len(self.blocks_s) >= _LEAST_BLOCKS

    def add(self, times_s: list[float], n_workers: int) -> None:
        """Add the times at which successive batches of one round were taken."""
        n = len(times_s) - 1
        if n <= 0:
            return
        self.n_batches += n
        self.seconds += times_s[-1] - times_s[0]
        self.round_means_s.append((times_s[-1] - times_s[0]) / n)
        size = max(1, n_workers) * max(1, n // (8 * max(1, n_workers)))
        self.blocks_s += [
            (times_s[end] - times_s[end - size]) / size for end in range(size, n + 1, size)
        ] or self.round_means_s[-1:]

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the mean, widened to the means of all rounds: the machine may change."""
        low, high = mean_interval(self.blocks_s)
        return min(low, self.mean_s, *self.round_means_s), max(high, self.mean_s, *self.round_means_s)


class _Rounds:
    """Measurements of one setting, over all rounds."""

    def __init__(self) -> None:
        self.first_batch_s: list[float] = []
        self.alone, self.loaded = _Times(), _Times()
        self.cpu_s = 0.0


class CurveMeasurement:
    """Measurement of the curve: upwards until more workers do not help, then once more downwards.

    This order spreads a drift of the machine over all points. ``batch_bytes`` limits the batches in shared memory.
    ``start_s`` is the approximate time to start one worker. ``pids`` is called with the ids of started workers, to
    clean up after killed ones. ``load`` computes between two batches; None to measure the loader alone.
    """

    def __init__(
        self, pipeline: Pipeline, batch_bytes: int, start_s: float, pids: Any, load: Load | None = None
    ) -> None:
        self._pipeline = pipeline
        self._batch_bytes = batch_bytes
        self._start_s = start_s
        self._pids = pids
        self._load = load
        self._rounds: dict[Setting, _Rounds] = {}
        self.stopped = ""
        """Why the curve ended before its knee; empty if it did not."""

    def measure(
        self, candidates: list[int], batch_s: float, until_s: float, later: Sequence[int] = ()
    ) -> Iterator[tuple[WorkerPoint, ...]]:
        """Measure with numbers of workers in ascending order; yield the points so far after each round.

        ``batch_s`` is the approximate time to make a batch in one process. The measurement ends at ``until_s`` by
        ``time.perf_counter``. The numbers in ``later`` are measured after the candidates.
        """
        settings = [self._setting(n) for n in candidates]
        measured: list[Setting] = []
        least_s = min(_MIN_ROUND_S, _MIN_ROUND_SHARE * (until_s - time.perf_counter()))
        for index, setting in enumerate(settings):
            left_s = until_s - time.perf_counter()
            round_s = min(_MAX_ROUND_S, max(least_s, 0.5 * left_s / max(1, len(settings) - index)))
            if not self._can_measure(setting, batch_s, left_s):
                break
            self._measure(setting, round_s)
            measured.append(setting)
            yield self.points()
            if self._is_knee(measured) and setting.num_workers >= 2:
                break
        for setting in map(self._setting, later):
            left_s = until_s - time.perf_counter()
            if setting not in measured and self._can_measure(setting, batch_s, left_s):
                self._measure(setting, max(least_s, 0.5 * left_s / (len(measured) + 1)))
                measured.append(setting)
                yield self.points()
        for _ in self._measure_all(measured[::-1], least_s, batch_s, until_s):
            yield self.points()

    def vary_prefetch(self, num_workers: int, factors: list[int], batch_s: float, until_s: float) -> None:
        """Measure one number of workers with several prefetch factors, up and down."""
        settings = [Setting(num_workers, factor) for factor in factors]
        for _ in self._measure_all([*settings, *reversed(settings)], _MIN_PREFETCH_ROUND_S, batch_s, until_s):
            pass

    def _measure_all(self, order: list[Setting], least_s: float, batch_s: float, until_s: float) -> Iterator[None]:
        """Divide the time left among settings; yield after each round, and end once less than ``least_s`` is left."""
        for index, setting in enumerate(order):
            left_s = until_s - time.perf_counter()
            if left_s < least_s or not self._can_measure(setting, batch_s, left_s, is_again=True):
                break
            self._measure(setting, min(_MAX_ROUND_S, left_s / (len(order) - index)))
            yield

    def points(self, num_workers: int | None = None) -> tuple[WorkerPoint, ...]:
        """Return the curve at the loader's own prefetch factor, or all prefetch factors at one number of workers."""
        chosen = [
            (setting, rounds)
            for setting, rounds in sorted(self._rounds.items(), key=lambda pair: (pair[0][0], pair[0][1] or 0))
            if rounds.alone.n_batches
            and (setting == self._setting(setting.num_workers) if num_workers is None else setting[0] == num_workers)
        ]
        return tuple(self._point(setting, rounds) for setting, rounds in chosen)

    def _setting(self, num_workers: int) -> Setting:
        return Setting(num_workers, (self._pipeline.prefetch_factor or 2) if num_workers else None)

    def _is_knee(self, measured: list[Setting]) -> bool:
        known = [self._rounds[setting] for setting in measured if self._rounds[setting].alone.n_batches]
        if len(measured) < 2 or not known:
            return False
        before_s = min((each.alone.mean_s for each in known[:-1]), default=math.inf)
        last = known[-1].loaded
        is_hidden = self._load is not None and last.n_batches > 0 and last.mean_s < self._load.seconds / KNEE
        return is_hidden or known[-1].alone.mean_s > KNEE * before_s

    def _can_measure(self, setting: Setting, batch_s: float, left_s: float, is_again: bool = False) -> bool:
        seen = self._rounds.get(setting)
        n_ahead = setting.num_workers * (setting.prefetch_factor or 1)
        needs_s = self._first_batch_s(setting, batch_s) + 0.05
        needs_s += seen.alone.mean_s if seen and seen.alone.n_batches else batch_s
        needs_s += self._load.seconds if self._load is not None and setting.num_workers else 0.0
        if needs_s > left_s:
            if not is_again:
                self.stopped = self.stopped or f"time ran out before {setting.num_workers} workers were tried"
            return False
        if n_ahead * self._batch_bytes > _SHM_SHARE * _free_shm_bytes():
            self.stopped = f"/dev/shm is too small for {n_ahead} batches of {setting.num_workers} workers"
            return False
        if n_ahead * self._batch_bytes > 0.25 * free_bytes():
            self.stopped = f"memory is too short for {n_ahead} batches of {setting.num_workers} workers"
            return False
        return True

    def _first_batch_s(self, setting: Setting, batch_s: float) -> float:
        """Return the expected seconds to the first batch, from this setting's last round or else other settings'."""
        seen = self._rounds.get(setting)
        if seen is not None and seen.first_batch_s:
            return seen.first_batch_s[-1]
        starts = [
            (rounds.first_batch_s[-1] - batch_s) / other.num_workers
            for other, rounds in self._rounds.items()
            if other.num_workers and rounds.first_batch_s
        ]
        return batch_s + max(0.0, max(starts, default=self._start_s)) * setting.num_workers

    def _measure(self, setting: Setting, budget_s: float) -> None:
        rounds = self._rounds.setdefault(setting, _Rounds())
        n_workers = setting.num_workers
        begin_s = time.perf_counter()
        batches = iter(self._pipeline.loader(n_workers, setting.prefetch_factor))
        self._pids([worker.pid for worker in getattr(batches, "_workers", ())])
        try:
            if not _take_batch(batches):
                raise Refused("the loader yields nothing")
            first_s = time.perf_counter() - begin_s
            rounds.first_batch_s.append(first_s)
            end_s = max(begin_s + budget_s, begin_s + first_s + 0.25 * budget_s)
            # Discard the batches made while the workers started: taking them shows no waiting.
            for n_taken in range(n_workers * (setting.prefetch_factor or 0)):
                if n_taken >= n_workers and time.perf_counter() > begin_s + 0.5 * budget_s:
                    break
                if not _take_batch(batches):
                    break
            load = self._load if n_workers else None  # without workers, loading and computing never overlap
            left_s = end_s - time.perf_counter()
            cpu_s = time.process_time()
            times_s = _times_taken(batches, n_workers, end_s - (_LOADED_SHARE * left_s if load is not None else 0.0))
            rounds.cpu_s += time.process_time() - cpu_s
            rounds.alone.add(times_s, n_workers)
            if load is not None:
                self._fill_queue(batches, n_workers * (setting.prefetch_factor or 0), load, end_s)
                rounds.loaded.add(_times_taken(batches, n_workers, end_s, load), n_workers)
        finally:
            del batches

    def _fill_queue(self, batches: Iterator[Any], n_ahead: int, load: Load, end_s: float) -> None:
        """Take some batches while the queue fills: workers are busier then than later."""
        until_s = time.perf_counter() + 0.3 * (end_s - time.perf_counter())
        for _ in range(n_ahead):
            if time.perf_counter() > until_s or not _take_batch(batches):
                break
            load.step()

    def _point(self, setting: Setting, rounds: _Rounds) -> WorkerPoint:
        low, high = rounds.alone.interval()
        step_s = step_low_s = step_high_s = None
        load = self._load
        if load is not None and setting.num_workers == 0 and rounds.alone.is_certain:
            step_s = rounds.alone.mean_s + load.seconds
            step_low_s, step_high_s = low + load.seconds - load.spread_s, high + load.seconds + load.spread_s
        elif rounds.loaded.is_certain:
            step_s = rounds.loaded.mean_s
            step_low_s, step_high_s = rounds.loaded.interval()
        return WorkerPoint(
            num_workers=setting.num_workers,
            prefetch_factor=setting.prefetch_factor,
            batch_s=rounds.alone.mean_s,
            low_s=low,
            high_s=high,
            first_batch_s=min(rounds.first_batch_s),
            n_batches=rounds.alone.n_batches,
            take_s=rounds.cpu_s / rounds.alone.n_batches if setting.num_workers else None,
            step_s=step_s,
            step_low_s=step_low_s,
            step_high_s=step_high_s,
        )


def _times_taken(batches: Iterator[Any], n_workers: int, end_s: float, load: Load | None = None) -> list[float]:
    """Take batches until ``end_s``, with ``load`` after each; return the start and the time of each batch."""
    times_s = [time.perf_counter()]
    # Batches come in bursts of as many as there are workers.
    least = max(1, n_workers) * (1 if load is None else _LEAST_BLOCKS)
    late_s = end_s + min(1.0, max(0.1, end_s - times_s[0]))
    while len(times_s) <= least or times_s[-1] < end_s:
        if len(times_s) > 1 and times_s[-1] > late_s:  # slow batches: use those taken so far
            break
        if not _take_batch(batches):  # only an IterableDataset ends
            break
        if load is not None:
            load.step()
        times_s.append(time.perf_counter())
    return times_s


def candidates(usable_cores: float, cpu_fraction: float | None, now: int) -> list[int]:
    """Return numbers of workers to try: 0, 1, 2, 4 … up to the cores, beyond where samples wait; and the one in use."""
    cores = max(1, int(usable_cores))
    most = cores * MAX_WORKERS_PER_CORE if cpu_fraction is not None and cpu_fraction < COMPUTE_BOUND else cores
    numbers, n = {0, cores, most}, 1
    while n < most:
        numbers.add(n)
        n *= 2
    if 0 < now <= most:
        numbers.add(now)
    return sorted(number for number in numbers if number <= MAX_WORKERS)


def urgent_first(numbers: list[int], needed: int) -> tuple[list[int], list[int]]:
    """Return the numbers of workers to try in a short time: upwards from ``needed``, then fewer, downwards.

    ``numbers`` are ascending. ``needed`` workers would hide the loading if each had a core of its own. 0 is left out:
    times without workers, or with those in use, are known from the training.
    """
    first = min(max(1, needed), numbers[-1])
    return sorted({first, *(n for n in numbers if n > first)}), [n for n in reversed(numbers) if 0 < n < first]


def _take_batch(batches: Iterator[Any]) -> bool:
    """Take and drop a batch; return whether there was one."""
    return next(batches, _END) is not _END


def _free_shm_bytes() -> float:
    with contextlib.suppress(OSError):
        return float(shutil.disk_usage("/dev/shm").free)
    return float("inf")
