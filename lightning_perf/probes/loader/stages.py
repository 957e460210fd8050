"""Run the stages of a probe in its child process, and report the record after each of them."""

import copy
import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from torch.utils.data import DataLoader

from lightning_perf.cgroups import free_bytes
from lightning_perf.errors import TreatmentError
from lightning_perf.records.loader_probe import LoaderProbe, Repeated

from .batch import point_of, summarize
from .child import EndingError, Reporter, error_line
from .copying import forget_parents_processes, separate_descriptors
from .curve import COMPUTE_BOUND, CurveMeasurement, candidates, urgent_first
from .guard import guard
from .kept import time_kept
from .lines import BatchLines, WorkerLines, read_worker_lines, with_operators
from .load import Load
from .pipeline import Pipeline, Refused
from .process import limit_memory, private_bytes, storage_bytes_read
from .samples import Samples

BATCHES_S, MIN_BATCHES, MAX_BATCHES = 0.5, 3, 20
"""Limits of timing a few batches, which uses a core: seconds after which no further one begins, least and most."""
PLANNED_SHARE = 0.85
"""Share of the time limit that the child plans to use; at the limit it is killed."""
SAMPLES_SHARE, LINES_SHARE, KEPT_SHARE, TRANSPORT_SHARE, PREFETCH_SHARE = 0.15, 0.15, 0.08, 0.08, 0.18
CALIBRATION_SHARE, WORKER_LINES_SHARE = 0.05, 0.08
"""Shares of the planned time; the curve takes the rest."""
MAX_SAMPLED_BATCHES, MAX_SAMPLES = 4096, 100_000
MIN_SAMPLED_BATCHES = 3
COLLATE_SHARE = 0.1
"""Share of a batch's time above which lines of collate are sampled too."""
FLAT = 1.4
"""Speedup by several workers below which their lines are sampled, to find why they wait."""
BURSTY = 1.3
"""Mean ÷ median time of a sample above which a few slow samples dominate; an exponential distribution has 1.44."""
BURSTY_BATCH = 1.5
"""p95 ÷ median time of a batch above which batches themselves come in bursts."""
AGAIN_SHARE = 0.05
"""Share of the planned time for timing slow samples again."""
MEMORY_SHARE = 0.25
"""Share of the memory free at the start by which the child may grow before it stops."""
_MAX_READINGS = 40
_DRAWING_S, _MAX_DRAWN = 0.3, 4096
_REPORT_EVERY_S = 0.5
_MIN_BURST_S = 1e-3  # system noise dominates the times of faster batches

Extent = Literal["full", "short", "batches"]
"""``"short"`` measures only samples, their lines and the curve, with forked workers; ``"batches"`` measures only the
median time of a few batches of random samples. The user requested neither, so both run under ``guard``."""


class Plan(NamedTuple):
    """Limits and settings of a probe.

    Attributes:
        limit_s: Seconds until the child is killed.
        scratch: A folder that the parent removes.
        load: Seconds per step that the training computes, and its number of threads; None if unknown.
    """

    limit_s: float
    usable_cores: float
    scratch: Path
    load: tuple[float, int] | None = None
    extent: Extent = "full"


class Report(msgspec.Struct, frozen=True):
    """Message of the child: its current stage, the workers it started, and the record so far."""

    stage: str
    pids: list[int]
    probe: LoaderProbe
    refusal: str = ""
    failure: str = ""


class _TooMuchMemory(Exception):
    """Raised if making samples needs more memory than allowed."""


def probe(loader: DataLoader[Any], plan: Plan, initial: LoaderProbe, reporter: Reporter) -> None:
    """Measure a loader, in the child. ``initial`` is the record with the fields that the parent knows."""
    begin_s = time.perf_counter()
    separate_descriptors(keep=(reporter.descriptor,))
    forget_parents_processes(plan.scratch)
    private_bytes(with_copied_pages=False)  # loads its libraries now, which ``guard`` would forbid
    if plan.extent != "full":
        guard(reporter, plan.scratch)
    gc.enable()  # only for the child's own objects: the parent's are frozen
    _Stages(loader, plan, initial, begin_s, reporter).run()


class _Stages:
    """The stages of one probe, and the record that they fill."""

    def __init__(
        self, loader: DataLoader[Any], plan: Plan, initial: LoaderProbe, begin_s: float, reporter: Reporter
    ) -> None:
        self._loader = loader
        self._plan = plan
        self._probe = initial
        self._begin_s = begin_s
        self._end_s = begin_s + PLANNED_SHARE * plan.limit_s
        self._reporter = reporter
        self._pids: list[int] = []
        self._samples = Samples()
        self._start_s = 0.0  # of one worker
        self._stage = "taking the loader apart"
        self._missing: dict[str, str] = dict(initial.missing)
        self._memory_allowed = MEMORY_SHARE * free_bytes()
        self._memory_limit = private_bytes(with_copied_pages=False) + self._memory_allowed
        limit_memory(1.2 * MEMORY_SHARE)  # enforced by the kernel: the limit above is only checked now and then

    def run(self) -> None:
        try:
            self._report()
            pipeline = Pipeline(self._loader, forks=self._plan.extent == "short")
            self._update(method="spawn" if pipeline.is_pickled else "fork", dataset_is_batched=pipeline.is_batched)
            if self._plan.extent == "batches":
                self._time_batches(pipeline)
            else:
                self._measure(pipeline)
        except Refused as refusal:
            self._report(refusal=str(refusal))
        except EndingError:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code, SystemExit too; it is reported
            argument = self._samples.argument
            what = self._stage if argument is None else f"dataset[{repr(argument)[:60]}]"
            failure = f"{what} raised {error_line(error)}"[:1000]
            if isinstance(error, MemoryError) or "allocate memory" in failure:
                failure += f" (a probe may take {self._memory_allowed / 2**30:.1f} GiB, a part of what was free)"
            self._report(failure=failure)
        else:
            self._stage = "done"
            self._report(failure="" if self._probe.curve else self._missing.get("curve", ""))

    def _measure(self, pipeline: Pipeline) -> None:
        pipeline.check_sharding()
        self._time_samples(pipeline)
        self._sample_lines(pipeline)
        self._keep_samples(pipeline)
        if self._plan.extent == "full":
            self._time_transport(pipeline)
        self._measure_curve(pipeline)

    def _time_batches(self, pipeline: Pipeline) -> None:
        """Time a few batches of random samples, without running a sampler of the user's."""
        self._enter_stage("making a batch")
        n_samples, draw = pipeline.n_samples(), random.Random(0)
        batch_s: list[float] = []
        end_s = time.perf_counter() + BATCHES_S
        while len(batch_s) < MIN_BATCHES or (len(batch_s) < MAX_BATCHES and time.perf_counter() < end_s):
            unit = [draw.randrange(n_samples) for _ in range(min(pipeline.batch_size or 1, n_samples))]
            begin_s = time.perf_counter()
            pipeline.batch_of([pipeline.fetch(call) for call in pipeline.calls(unit)])
            batch_s.append(time.perf_counter() - begin_s)
        point = point_of(batch_s, 0, None, batch_s[0])
        self._update(curve=(msgspec.structs.replace(point, batch_s=statistics.median(batch_s)),))

    def _planned_s(self, share: float) -> float:
        return share * PLANNED_SHARE * self._plan.limit_s

    def _update(self, **fields: Any) -> None:
        self._probe = msgspec.structs.replace(self._probe, **fields)

    def _report(self, refusal: str = "", failure: str = "") -> None:
        self._update(wall_s=time.perf_counter() - self._begin_s, missing=dict(self._missing))
        self._reporter(msgspec.json.encode(Report(self._stage, self._pids, self._probe, refusal, failure)))

    def _enter_stage(self, stage: str) -> None:
        self._stage = stage
        self._report()

    def _time_samples(self, pipeline: Pipeline) -> None:
        self._enter_stage("making samples")
        samples = self._samples
        read_before = storage_bytes_read()
        end_s = time.perf_counter() + self._planned_s(SAMPLES_SHARE)
        late_s = end_s + self._planned_s(SAMPLES_SHARE)
        next_reading_s = next_report_s = 0.0
        try:
            for unit in pipeline.units:
                samples.make_batch(pipeline, unit, late_s)
                now_s = time.perf_counter()
                if now_s >= next_reading_s:
                    samples.readings.append((float(samples.n_samples), private_bytes(with_copied_pages=True)))
                    next_reading_s = now_s + self._planned_s(SAMPLES_SHARE) / _MAX_READINGS
                    if samples.readings[-1][1] > self._memory_limit:
                        raise _TooMuchMemory
                if now_s >= next_report_s:  # in case the next sample hangs or ends the process
                    self._record_samples(read_before)
                    self._report()
                    next_report_s = time.perf_counter() + _REPORT_EVERY_S
                n = len(samples.batch_s)
                is_enough = n >= MAX_SAMPLED_BATCHES or samples.n_samples >= MAX_SAMPLES
                is_time = n >= MIN_SAMPLED_BATCHES and now_s > end_s
                if is_time and now_s < 0.5 * (end_s + late_s):
                    is_time = not samples.has_few_slow()
                if is_enough or now_s > late_s or is_time:
                    break
            self._update(slow_again=samples.slow_again(pipeline, self._planned_s(AGAIN_SHARE)))
        except _TooMuchMemory:
            n_mib = (samples.readings[-1][1] - samples.readings[0][1]) / 2**20
            raise MemoryError(f"{samples.n_samples} samples took {n_mib:.0f} MiB that they do not give back") from None
        finally:
            self._record_samples(read_before)

    def _record_samples(self, read_before: int | None) -> None:
        samples = self._samples
        if not samples.sample_s:
            return
        read_after = storage_bytes_read()
        if read_before is None or read_after is None:
            self._missing["read_bytes"] = "the kernel does not report what a process reads"
        else:
            self._update(read_bytes=(read_after - read_before) / max(1, samples.n_samples))
        growth = samples.growth()
        self._missing.pop("rss_growth_bytes", None)
        if isinstance(growth, str):
            self._missing["rss_growth_bytes"] = growth
        self._update(rss_growth_bytes=None if isinstance(growth, str) else growth, **samples.fields())

    def _sample_lines(self, pipeline: Pipeline) -> None:
        """Find the functions and lines that take the time to make and to collate samples."""
        self._enter_stage("sampling the lines of __getitem__")
        samples = self._samples
        calls = _drawn_calls(pipeline, min(_DRAWING_S, self._planned_s(LINES_SHARE) / 4))
        making, collating = BatchLines(), BatchLines()
        getitem, collate = self._probe.getitem, self._probe.collate
        assert getitem is not None
        collate_s = collate.mean_s if collate is not None else 0.0
        is_collate_costly = collate_s > COLLATE_SHARE * (getitem.mean_s * (samples.batch_size or 1) + collate_s)
        budget_s = self._planned_s(LINES_SHARE) * (0.6 if is_collate_costly else 1.0)
        with making.sampling():
            _repeat(calls, budget_s)
        if is_collate_costly:
            collate_once = partial(pipeline.batch_of, samples.results)
            with collating.sampling():
                _repeat(collate_once, budget_s / 2)
            collating.time_lines(collate_once)
        call_s = getitem.mean_s * ((samples.batch_size or 1) if pipeline.is_batched else 1)
        functions = with_operators(making.functions("getitem"), making.time_lines(calls), call_s)
        self._update(
            functions=(*functions, *collating.functions("collate")),
            lines=making.hot_lines(),
            host_lines=making.lines(),
            collate_lines=collating.lines(),
        )
        if not self._probe.functions:
            self._missing["functions"] = "no line of your code was seen while samples were made"

    def _keep_samples(self, pipeline: Pipeline) -> None:
        """Time samples that are kept in memory, if they may be."""
        self._enter_stage("keeping samples in memory")
        getitem = self._probe.getitem
        assert getitem is not None
        n_samples = (self._samples.batch_size or 1) if pipeline.makes_batches else 1
        try:
            kept = time_kept(pipeline, n_samples * getitem.mean_s, self._planned_s(KEPT_SHARE))
            self._update(
                may_keep=True, kept_s=kept.item_s / n_samples, kept_bytes=kept.n_bytes, n_compared=kept.n_compared
            )
        except TreatmentError as error:
            self._update(may_keep=False)
            self._missing["kept_s"] = str(error)
        except TimeoutError as error:
            self._missing["kept_s"] = str(error)
        except Exception as error:  # noqa: BLE001 - the user's objects; the reason is reported
            self._missing["kept_s"] = f"items cannot be loaded again: {error_line(error)}"

    def _time_transport(self, pipeline: Pipeline) -> None:
        self._enter_stage("moving batches from a worker")
        samples = self._samples
        if pipeline.is_iterable and pipeline.makes_batches:
            samples.results = samples.results[:1]
        try:
            copy.deepcopy(samples.results)
        except Exception as error:  # noqa: BLE001 - the user's objects; the reason is reported
            self._missing["transport"] = f"samples cannot be copied: {error_line(error)}"
            return
        durations_s, self._start_s = pipeline.time_transport(samples.results, self._planned_s(TRANSPORT_SHARE))
        self._update(transport=summarize(durations_s))
        samples.results = []

    def _measure_curve(self, pipeline: Pipeline) -> None:
        self._enter_stage("running the loader with different numbers of workers")
        getitem, batch_s = self._probe.getitem, self._probe.made_s()
        assert getitem is not None
        assert batch_s is not None
        load = self._load()
        self._report()
        measurement = CurveMeasurement(pipeline, self._probe.batch_bytes or 0, self._start_s, self._pids.extend, load)
        tried = candidates(self._plan.usable_cores, self._probe.getitem_cpu_fraction, now := pipeline.num_workers)
        affordable = self._affordable(sorted({*tried, now}))
        numbers, later = [n for n in tried if n in affordable], [now] if now in affordable else []
        limit_memory(2 * MEMORY_SHARE / max(2, *affordable))  # of each worker
        is_bursty = self._plan.extent == "full" and _is_bursty(getitem, self._samples.batch_s)
        end_s = self._end_s - (self._planned_s(PREFETCH_SHARE) if is_bursty else 0.0)
        does_wait = (self._probe.getitem_cpu_fraction or 0.0) < COMPUTE_BOUND
        if does_wait:
            end_s -= self._planned_s(WORKER_LINES_SHARE)
        if load is not None and self._plan.extent == "short":
            numbers, fewer = urgent_first(numbers, math.ceil(batch_s / max(load.seconds, 1e-6)))
            later += fewer
        for points in measurement.measure(numbers, batch_s, end_s, later):
            self._update(curve=points)
            self._report()
        if does_wait:
            self._sample_workers(pipeline, batch_s)
        if measurement.stopped:
            self._missing["curve"] = measurement.stopped
        point = self._probe.point_at(now)
        if point is not None:
            self._update(first_batch_s=point.first_batch_s)
        else:
            self._missing["first_batch_s"] = f"{now} workers were not tried"
        with_workers = [point for point in self._probe.curve if point.num_workers]
        if is_bursty and with_workers:
            self._enter_stage("running the loader with different prefetch factors")
            best = min(with_workers, key=lambda point: point.batch_s)
            factors = sorted({best.prefetch_factor or 2, 4, 8})
            measurement.vary_prefetch(best.num_workers, factors, batch_s, self._end_s)
            self._update(prefetch=measurement.points(best.num_workers))

    def _affordable(self, numbers: list[int]) -> list[int]:
        """Return the numbers of workers for which memory is free, if each needs as much as this process does."""
        taken = private_bytes(with_copied_pages=True)
        most = self._memory_allowed / taken if taken > 0 else math.inf
        affordable = [n for n in numbers if n <= most]
        if len(affordable) < len(numbers):
            self._missing["curve"] = f"memory is too short for {numbers[len(affordable)]} workers"
        return affordable or [0]

    def _sample_workers(self, pipeline: Pipeline, batch_s: float) -> None:
        """Sample the lines of workers if several are hardly faster than one, to find why they wait."""
        most = max(self._probe.curve, key=lambda point: point.num_workers, default=None)
        if most is None or most.num_workers < 2 or batch_s > FLAT * most.batch_s:
            return
        self._enter_stage("sampling the lines of workers")
        inner, pipeline.worker_init = pipeline.worker_init, WorkerLines(pipeline.worker_init, self._plan.scratch)
        end_s = time.perf_counter() + self._planned_s(WORKER_LINES_SHARE)
        batches = iter(pipeline.loader(most.num_workers, most.prefetch_factor))
        self._pids.extend(worker.pid for worker in getattr(batches, "_workers", ()))
        for _ in batches:
            if time.perf_counter() > end_s:
                break
        del batches  # its workers write as they end
        self._update(worker_lines=read_worker_lines(self._plan.scratch))
        pipeline.worker_init = inner

    def _load(self) -> Load | None:
        """Return a compute load like the training's; None if that is unknown."""
        if self._plan.load is None:
            return None
        load = Load(*self._plan.load, self._planned_s(CALIBRATION_SHARE))
        self._update(load_s=load.seconds, load_threads=self._plan.load[1])
        return load


def _repeat(work: Callable[[], Any], seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    work()
    while time.perf_counter() < end_s:
        work()


def _drawn_calls(pipeline: Pipeline, seconds: float) -> Callable[[], Any]:
    """Return a function that calls the dataset once, with indices drawn here, since the sampler takes time itself."""
    drawn: list[Any] = []
    end_s = time.perf_counter() + seconds
    for unit in pipeline.units:
        drawn += pipeline.calls(unit)
        if len(drawn) >= _MAX_DRAWN or time.perf_counter() > end_s:
            break
    calls = itertools.cycle(drawn)
    return lambda: pipeline.fetch(next(calls))


def _is_bursty(getitem: Repeated, batch_s: list[float]) -> bool:
    batches = summarize(batch_s)
    if batches is None or batches.mean_s < _MIN_BURST_S:
        return False
    if getitem.p50_s > 0 and getitem.mean_s / getitem.p50_s > BURSTY:
        return True
    return batches.p50_s > 0 and batches.p95_s / batches.p50_s > BURSTY_BATCH
