"""Throughput of a loader against its number of workers, with nobody waiting between two batches."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil

from lightning_perf.records.loader_probe import MAX_WORKERS, WAITING_REACH, WorkerPoint

from .numbers import mean_interval
from .pipeline import Pipeline, Refused

KNEE = 0.95
"""A doubling of the workers that leaves more than this of the time a batch took is the end of the curve."""
_COMPUTES = 0.5  # CPU seconds a second above which samples are said to compute
_MIN_VISIT_S, _MAX_VISIT_S = 0.25, 2.5
_MIN_PREFETCH_VISIT_S = 0.1
_SHM_SHARE = 0.5  # of what is free in /dev/shm: a training that runs beside needs the rest


class Setting(NamedTuple):
    """A loader's workers."""

    num_workers: int
    prefetch_factor: int | None


class _Visits:
    """What was measured with one setting, over all visits."""

    def __init__(self) -> None:
        self.first_batch_s: list[float] = []
        self.blocks_s: list[float] = []
        self.visit_means_s: list[float] = []
        self.n_batches = 0
        self.seconds = 0.0
        self.cpu_s = 0.0

    @property
    def batch_s(self) -> float:
        return self.seconds / self.n_batches


class CurveMeasurement:
    """Measures points of the curve: once upwards until more workers bring no more, then once more downwards.

    What drifts meanwhile (clocks, caches, a training beside) then falls on all points alike.

    Args:
        pipeline: The loader's parts.
        batch_bytes: Bytes of a batch, for what fits into shared memory.
        start_s: About what it takes to start one worker.
        pids: Called with the ids of workers that were started, for what they leave if killed.
    """

    def __init__(self, pipeline: Pipeline, batch_bytes: int, start_s: float, pids: Any) -> None:
        self._pipeline = pipeline
        self._batch_bytes = batch_bytes
        self._start_s = start_s
        self._pids = pids
        self._visits: dict[Setting, _Visits] = {}
        self.stopped = ""
        """Why the curve ended before its knee; empty where it did not."""

    def climb(self, candidates: list[int], batch_s: float, until_s: float) -> Iterator[tuple[WorkerPoint, ...]]:
        """Measures; yields the points up to now after each visit.

        Args:
            candidates: Numbers of workers, ascending.
            batch_s: About what a batch takes to make in one process.
            until_s: When to end, by ``time.perf_counter``.
        """
        settings = [self._setting(n) for n in candidates]
        visited: list[Setting] = []
        for index, setting in enumerate(settings):
            left_s = until_s - time.perf_counter()
            visit_s = min(_MAX_VISIT_S, max(_MIN_VISIT_S, 0.5 * left_s / max(1, len(settings) - index)))
            if not self._can_visit(setting, batch_s, left_s):
                break
            self._visit(setting, visit_s)
            visited.append(setting)
            yield self.points()
            if self._is_knee(visited) and setting.num_workers >= 2:
                break
        now = self._setting(self._pipeline.num_workers)
        if now not in visited and self._can_visit(now, batch_s, until_s - time.perf_counter()):
            self._visit(now, max(_MIN_VISIT_S, 0.5 * (until_s - time.perf_counter()) / (len(visited) + 1)))
            visited.append(now)
            yield self.points()
        for index, setting in enumerate(reversed(visited)):
            left_s = until_s - time.perf_counter()
            if left_s < _MIN_VISIT_S or not self._can_visit(setting, batch_s, left_s, is_again=True):
                break
            self._visit(setting, min(_MAX_VISIT_S, left_s / (len(visited) - index)))
            yield self.points()

    def vary_prefetch(self, num_workers: int, factors: list[int], batch_s: float, until_s: float) -> None:
        """Measures one number of workers with several prefetch factors, up and down."""
        settings = [Setting(num_workers, factor) for factor in factors]
        order = [*settings, *reversed(settings)]
        for index, setting in enumerate(order):
            left_s = until_s - time.perf_counter()
            if left_s < _MIN_PREFETCH_VISIT_S or not self._can_visit(setting, batch_s, left_s, is_again=True):
                break
            self._visit(setting, min(_MAX_VISIT_S, left_s / (len(order) - index)))

    def points(self, num_workers: int | None = None) -> tuple[WorkerPoint, ...]:
        """The curve at the loader's own prefetch factor; or all prefetch factors at one number of workers."""
        chosen = [
            (setting, visits)
            for setting, visits in sorted(self._visits.items(), key=lambda pair: (pair[0][0], pair[0][1] or 0))
            if visits.n_batches
            and (setting == self._setting(setting.num_workers) if num_workers is None else setting[0] == num_workers)
        ]
        return tuple(_point(setting, visits) for setting, visits in chosen)

    def _setting(self, num_workers: int) -> Setting:
        return Setting(num_workers, (self._pipeline.prefetch_factor or 2) if num_workers else None)

    def _is_knee(self, visited: list[Setting]) -> bool:
        if len(visited) < 2:
            return False
        known = [self._visits[setting].batch_s for setting in visited if self._visits[setting].n_batches]
        before = min(known[:-1], default=math.inf)
        return bool(known) and known[-1] > KNEE * before

    def _can_visit(self, setting: Setting, batch_s: float, left_s: float, is_again: bool = False) -> bool:
        seen = self._visits.get(setting)
        n_ahead = setting.num_workers * (setting.prefetch_factor or 1)
        needs_s = self._first_batch_s(setting, batch_s) + (seen.batch_s if seen and seen.n_batches else batch_s) + 0.05
        if needs_s > left_s:
            if not is_again:
                self.stopped = self.stopped or f"time ran out before {setting.num_workers} workers were tried"
            return False
        if n_ahead * self._batch_bytes > _SHM_SHARE * _free_shm_bytes():
            self.stopped = f"/dev/shm is too small for {n_ahead} batches of {setting.num_workers} workers"
            return False
        if n_ahead * self._batch_bytes > 0.25 * psutil.virtual_memory().available:
            self.stopped = f"memory is too short for {n_ahead} batches of {setting.num_workers} workers"
            return False
        return True

    def _first_batch_s(self, setting: Setting, batch_s: float) -> float:
        """About how long the first batch will take: as before, or by the workers that were started before."""
        seen = self._visits.get(setting)
        if seen is not None and seen.first_batch_s:
            return seen.first_batch_s[-1]
        starts = [
            (visits.first_batch_s[-1] - batch_s) / other.num_workers
            for other, visits in self._visits.items()
            if other.num_workers and visits.first_batch_s
        ]
        return batch_s + max(0.0, max(starts, default=self._start_s)) * setting.num_workers

    def _visit(self, setting: Setting, budget_s: float) -> None:
        visits = self._visits.setdefault(setting, _Visits())
        n_workers = setting.num_workers
        begin_s = time.perf_counter()
        batches = iter(self._pipeline.loader(n_workers, setting.prefetch_factor))
        self._pids([worker.pid for worker in getattr(batches, "_workers", ())])
        try:
            if not _take(batches):
                raise Refused("the loader yields nothing")
            first_s = time.perf_counter() - begin_s
            visits.first_batch_s.append(first_s)
            end_s = max(begin_s + budget_s, begin_s + first_s + 0.25 * budget_s)
            # What was made while the workers started is taken first: it came without being waited for.
            for n_taken in range(n_workers * (setting.prefetch_factor or 0)):
                if n_taken >= n_workers and time.perf_counter() > begin_s + 0.5 * budget_s:
                    break
                if not _take(batches):
                    break
            self._watch(visits, batches, n_workers, end_s)
        finally:
            del batches

    def _watch(self, visits: _Visits, batches: Iterator[Any], n_workers: int, end_s: float) -> None:
        cpu_s = time.process_time()
        times_s = [time.perf_counter()]
        least = max(1, n_workers)  # batches come in bursts of as many as there are workers
        while len(times_s) <= least or times_s[-1] < end_s:
            if len(times_s) > 1 and times_s[-1] > end_s + 1.0:  # slow batches: as many as there were
                break
            if not _take(batches):  # only an IterableDataset ends
                break
            times_s.append(time.perf_counter())
        n = len(times_s) - 1
        if n == 0:
            return
        visits.n_batches += n
        visits.seconds += times_s[-1] - times_s[0]
        visits.cpu_s += time.process_time() - cpu_s
        visits.visit_means_s.append((times_s[-1] - times_s[0]) / n)
        size = max(1, n_workers) * max(1, n // (8 * max(1, n_workers)))
        visits.blocks_s += [
            (times_s[end] - times_s[end - size]) / size for end in range(size, n + 1, size)
        ] or visits.visit_means_s[-1:]


def candidates(usable_cores: float, cpu_fraction: float | None, now: int) -> list[int]:
    """Numbers of workers to try: 0, 1, 2, 4 … up to the cores, beyond where samples wait, and the number in use."""
    cores = max(1, int(usable_cores))
    reach = cores * WAITING_REACH if cpu_fraction is not None and cpu_fraction < _COMPUTES else cores
    numbers, n = {0, cores, reach}, 1
    while n < reach:
        numbers.add(n)
        n *= 2
    if 0 < now <= reach:
        numbers.add(now)
    return sorted(number for number in numbers if number <= MAX_WORKERS)


def _take(batches: Iterator[Any]) -> bool:
    """Whether there was another batch, which is dropped."""
    for batch in batches:
        del batch
        return True
    return False


def _point(setting: Setting, visits: _Visits) -> WorkerPoint:
    low, high = mean_interval(visits.blocks_s)
    # Two visits that disagree by more than their blocks do have seen the machine change.
    low, high = min(low, visits.batch_s, *visits.visit_means_s), max(high, visits.batch_s, *visits.visit_means_s)
    return WorkerPoint(
        num_workers=setting.num_workers,
        prefetch_factor=setting.prefetch_factor,
        batch_s=visits.batch_s,
        low_s=low,
        high_s=high,
        first_batch_s=min(visits.first_batch_s),
        n_batches=visits.n_batches,
        take_s=visits.cpu_s / visits.n_batches if setting.num_workers else None,
    )


def _free_shm_bytes() -> float:
    with contextlib.suppress(OSError):
        statistics = os.statvfs("/dev/shm")
        return float(statistics.f_frsize * statistics.f_bavail)
    return float("inf")
