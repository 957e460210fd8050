"""Make samples one at a time and measure each; test whether slow ones are slow again."""

import math
import statistics
import time
from typing import Any, NamedTuple

from lightning_perf.stats.leak import fit_trend

from .batch import BatchContents, indexes_tensors, summarize
from .pipeline import Pipeline
from .process import n_waits, queued_s

SLOW_RATIO, ENOUGH_SLOW = 5.0, 10
"""A sample is slow above this multiple of the median; from this many slow ones, their share is known within a third."""
WORTH_READING_S = 200e-6
"""Queueing for a core is read only after samples slower than this, since reading it takes about 20 us."""
MAX_TIMED_AGAIN = 20
"""Most slow samples that are made a second time."""
_MIN_GROWTH_BYTES = 16 * 2**20
"""Less growth is not reported: the child also copies pages of the interpreter when it first writes to them."""


class _SlowCall(NamedTuple):
    """A slow call of the dataset: its argument, time per sample, number of samples, and whether it waited."""

    call: Any
    sample_s: float
    n_samples: int
    has_waited: bool


class Samples:
    """Measurements of a pass over samples.

    Attributes:
        sample_s: Seconds of each sample, without queueing for a core.
        batch_s: Seconds to make the samples of each batch.
        wall_s: Wall time of all samples and batches, without queueing.
        cpu_s: CPU time of all threads in ``wall_s``.
        readings: Pairs of the number of samples and the process's private memory at that time.
        batch_sizes: Samples of each batch.
        results: Results of the dataset's calls for the last batch that is as large as the first one.
        indexes: Whether samples are rows of tensors; None before the first batch.
        argument: Index that the dataset is called with now; None between calls, and for an ``IterableDataset``.
    """

    def __init__(self) -> None:
        self.sample_s: list[float] = []
        self.batch_s: list[float] = []
        self.collate_s: list[float] = []
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.n_samples = 0
        self.readings: list[tuple[float, float]] = []
        self.contents = BatchContents()
        self.batch_sizes: list[int] = []
        self.results: list[Any] = []
        self.indexes: bool | None = None
        self.argument: Any = None
        self._slow_calls: list[_SlowCall] = []

    def make_batch(self, pipeline: Pipeline, unit: Any, late_s: float) -> None:
        """Make the samples of one batch and collate them; after ``late_s``, reuse those made for the rest."""
        results: list[Any] = []
        calls = pipeline.calls(unit)
        waits_before = n_waits()
        queued_begin_s, cpu_begin_s, begin_s = queued_s(), time.process_time(), time.perf_counter()
        last_s, queued_before_s = begin_s, queued_begin_s
        for call in calls:
            self.argument = None if pipeline.is_iterable else call
            results.append(pipeline.fetch(call))
            self.argument = None
            now_s = time.perf_counter()
            n = pipeline.samples_in(call, results[-1])
            taken_s = now_s - last_s
            if taken_s > WORTH_READING_S:  # a sample is not slow if another process had the core
                queued_now_s, waits = queued_s(), n_waits()
                taken_s -= min(queued_now_s - queued_before_s, 0.95 * taken_s)
                self._slow_calls.append(_SlowCall(call, taken_s / n, n, waits > waits_before))
                queued_before_s, waits_before = queued_now_s, waits
            self.sample_s += [taken_s / n] * n
            self.n_samples += n
            last_s = time.perf_counter()
            if now_s > late_s:
                break
        end_s = time.perf_counter()
        cpu_s = time.process_time() - cpu_begin_s
        self.cpu_s += cpu_s
        # On a busy virtual machine the kernel may count more queueing than the time that has passed.
        self.wall_s += max(cpu_s, end_s - begin_s - (queued_s() - queued_begin_s))
        if self.indexes is None:
            self.indexes = not pipeline.is_batched and indexes_tensors(pipeline.dataset, results[0])
        if len(results) < len(calls):
            results = (results * len(calls))[: len(calls)]
        begin_s = time.perf_counter()
        batch = pipeline.batch_of(results)
        collated_s = time.perf_counter()
        self.collate_s.append(collated_s - begin_s)
        self.batch_s.append(sum(self.sample_s[-len(calls) :]) if not pipeline.is_batched else end_s - begin_s)
        self.batch_sizes.append(pipeline.samples_in(calls[0], results[0]) if pipeline.is_batched else len(calls))
        if len(self.collate_s) <= 4:
            self.contents.add(batch)
        if self.batch_sizes[-1] >= self.batch_sizes[0]:
            self.results = results

    @property
    def batch_size(self) -> int | None:
        """Samples of most batches: the last one of an epoch may have fewer. None before the first batch."""
        return statistics.median_high(self.batch_sizes) if self.batch_sizes else None

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``LoaderProbe`` that the pass measures, once there are samples."""
        return {
            "getitem": summarize(self.sample_s),
            "n_slow": self.n_slow(),
            "getitem_cpu_fraction": min(1.0, self.cpu_s / self.wall_s) if self.wall_s > 0 else None,
            "batch_size": self.batch_size,
            "indexes_tensors": self.indexes,
            "collate": summarize(self.collate_s),
            **self.contents.fields(),
        }

    def growth(self) -> float | str:
        """Return the growth of memory in bytes per sample, 0 if it is not steady; or why it is unknown."""
        if any(math.isnan(own) for _, own in self.readings):
            return "the kernel does not report the private memory of a process"
        warm = self.readings[len(self.readings) // 4 :]
        trend = fit_trend([n for n, _ in warm], [own for _, own in warm])
        if trend is None:
            return f"{len(warm)} readings are too few to distinguish growth from noise"
        grown_bytes = trend.slope * (warm[-1][0] - warm[0][0])
        return trend.slope if trend.low > 0 and trend.is_steady and grown_bytes >= _MIN_GROWTH_BYTES else 0.0

    def n_slow(self) -> int:
        slow_s = SLOW_RATIO * statistics.median(self.sample_s)
        return sum(each_s > slow_s for each_s in self.sample_s)

    def has_few_slow(self) -> bool:
        """Return whether some samples were slow, but too few to know their share."""
        return 0 < self.n_slow() < ENOUGH_SLOW

    def slow_again(self, pipeline: Pipeline, limit_s: float) -> float | None:
        """Make slow samples again, within ``limit_s`` seconds, and return the share of their slowness that recurred.

        Otherwise CPU steal, which is not visible to the guest, would count as slow samples. Slowness is the time above
        the median. That of a sample that waited counts in full without making it again, since its data may be cached
        by now. None if no sample was slow, or none could be made again.
        """
        usual_s = statistics.median(self.sample_s)
        slow = [each for each in self._slow_calls if each.sample_s > SLOW_RATIO * usual_s]
        if pipeline.is_iterable or not slow:
            return None
        first_s = again_s = 0.0
        n_again, end_s = 0, time.perf_counter() + limit_s
        for each in sorted(slow, key=lambda each: -each.sample_s):
            excess_s = excess_again_s = each.n_samples * (each.sample_s - usual_s)
            if not each.has_waited:
                takes_s = each.n_samples * each.sample_s
                if n_again == MAX_TIMED_AGAIN or time.perf_counter() + takes_s > end_s:
                    continue
                n_again += 1
                self.argument = each.call
                queued_begin_s, begin_s = queued_s(), time.perf_counter()
                pipeline.fetch(each.call)
                taken_s = time.perf_counter() - begin_s - (queued_s() - queued_begin_s)
                self.argument = None
                excess_again_s = min(excess_s, max(0.0, taken_s - each.n_samples * usual_s))
            first_s += excess_s
            again_s += excess_again_s
        return again_s / first_s if first_s > 0 else None
