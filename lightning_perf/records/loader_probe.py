"""Measurements of one loader: the cost of a sample, its costliest lines, and throughput by number of workers."""

from typing import Literal

from .base import Record
from .host_profile import HostLine

MAX_WORKERS_PER_CORE = 4
"""Most workers per core that are probed or recommended for a dataset that waits, e.g. for storage."""

MAX_WORKERS = 64
"""Most workers that are probed or recommended."""


class Repeated(Record, frozen=True, kw_only=True):
    """A duration measured several times, in seconds."""

    n: int
    mean_s: float
    p50_s: float
    p95_s: float
    max_s: float


class HotFunction(Record, frozen=True, kw_only=True):
    """A function that takes much of the time to make samples.

    Attributes:
        name: Qualified name if known, e.g. ``"Images.augment"``.
        file: Source file; empty for built-in functions and C code.
        line: Its first line; 0 if unknown.
        share: Share of the time of ``where`` spent in it and the functions that it calls.
        own_share: The same without the functions that it calls.
        blamed_share: Share of the time in which it was the innermost function of the user's, so that libraries and C
            code count for their caller; if no function of the user's was running, the innermost Python function counts.
            These shares add up to at most 1, and the functions are ordered by them.
        n_calls: Calls per sample (per batch for collate); None from a sampling profiler.
        where: ``"getitem"`` or ``"collate"``.
        kind: ``"python"``, or ``"native"`` if most of ``blamed_share`` is spent in C code that it calls, including
            operators on arrays and tensors.
        basis: How it was found: ``"stack samples"``; ``"cProfile"`` or ``"pyinstrument"`` in older sessions.
        is_users: Whether it is the user's code, not the standard library or an installed package.
    """

    name: str
    file: str
    line: int
    share: float
    own_share: float
    blamed_share: float = 0.0
    n_calls: float | None = None
    where: Literal["getitem", "collate"] = "getitem"
    kind: Literal["python", "native"] = "python"
    basis: str = "cProfile"
    is_users: bool = True


class HotLine(Record, frozen=True, kw_only=True):
    """A line of the costliest function: its text and its share of that function's time.

    Attributes:
        share: Share of the function's time, including the functions that the line calls.
        basis: How it was found: ``"stack samples"``; ``"line_profiler"`` or ``"pyinstrument"`` in older sessions.
    """

    file: str
    line: int
    text: str
    share: float
    basis: str = "line_profiler"


class WorkerPoint(Record, frozen=True, kw_only=True):
    """Throughput of the loader with one number of workers.

    Attributes:
        num_workers: Worker processes; 0 if the consumer makes the batches.
        prefetch_factor: Batches that each worker prefetches; None without workers.
        batch_s: Seconds from one batch to the next after the start of the workers.
        low_s: Lower end of a 95 % interval of ``batch_s``.
        first_batch_s: Seconds until the first batch, including the start of the workers.
        take_s: CPU seconds of the consumer to receive one batch; None if not measured.
        step_s: Seconds per step if the consumer computes for ``LoaderProbe.load_s`` between two batches, as a training
            does; None if not measured.
        step_low_s: Lower end of a 95 % interval of ``step_s``.
    """

    num_workers: int
    prefetch_factor: int | None
    batch_s: float
    low_s: float
    high_s: float
    first_batch_s: float
    n_batches: int
    take_s: float | None = None
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None


class LoaderProbe(Record, frozen=True, kw_only=True):
    """One loader, measured in a child process on copies.

    Attributes:
        status: ``measured``; ``partial`` (time ran out, or the data failed on the way); ``refused`` (it cannot be
            copied); ``failed`` (the data raised or hung, or its process died, before the first result).
        reason: Why it is not ``measured``; empty otherwise.
        index: Position among the loaders of the stage.
        method: Start method of the child: ``"fork"`` or ``"spawn"``.
        batch_size: Samples per batch; None if unknown.
        getitem: Time of one ``dataset[i]`` in one process without workers (per sample of a batch if the dataset makes
            whole batches). This and the following fields are None if not measured.
        getitem_cpu_fraction: CPU time of making samples (all threads) ÷ wall time without queueing for a core: near 1
            it computes, near 0 it waits.
        n_slow: Samples that took more than five times the median.
        slow_again: Fraction of the slow samples' time above the median that recurred when they were made again; samples
            that waited, e.g. for storage, count in full. Near 0, the machine made them slow. None without slow samples,
            or if none could be made again.
        dataset_is_batched: Whether one index gives a whole batch (``batch_size=None`` or ``__getitems__``).
        indexes_tensors: Whether samples are rows of tensors in memory, fetched one at a time.
        may_keep: Whether all samples may be kept in memory, as ``dataset-cache`` does: False if e.g. they differ when
            they are loaded again. None if that is not known.
        kept_s: Seconds to get one sample that is kept in memory; None unless ``may_keep``.
        kept_bytes: Bytes that all samples take in memory, estimated from the first; None without ``kept_s``.
        n_compared: Items that were loaded twice and were the same; None without ``kept_s``.
        transport: Time to move a batch from a worker to the main process: pickling, shared memory, rebuilding.
        pin: Time to pin a batch; None without a device that needs it.
        batch_bytes: Bytes of the tensors and arrays of a batch.
        n_objects: Other Python objects in a batch (numbers, strings, containers).
        bytes_by_dtype: Bytes of a batch by dtype, e.g. ``{"float64": 1048576}``.
        narrow_bytes: Bytes of float fields whose sampled values are all representable as uint8 (0…255, or 0…1 in steps
            of 1/255).
        first_batch_s: Seconds of the first batch with the loader's own settings, including the start of its workers.
        read_bytes: Bytes read from storage per sample; None if unknown.
        rss_growth_bytes: Growth of a process's private memory per sample, after warm-up.
        functions: The costliest functions: those of ``__getitem__``, then those of collate.
        lines: Lines of the first function.
        host_lines: Lines of the user's code by their time in making samples in one process, costliest first.
        collate_lines: The same for collate.
        worker_lines: The same for all workers of the curve's point with the most workers.
        curve: Throughput by number of workers, fewest first: 0, 1, 2, 4 … usable cores and the number in use, or more
            if samples wait instead of computing. It ends at the first number that is not faster.
        prefetch: Throughput by prefetch factor, if samples are bursty.
        load_s: Seconds per step that the consumer computes in the curve; None for none.
        compute_s: Seconds per step on one cached batch, without loading; None if not measured.
        compute_basis: How ``compute_s`` was measured, or why it was not.
        missing: Why a field is None.
    """

    status: Literal["measured", "partial", "refused", "failed"]
    reason: str = ""
    stage: str = "train"
    index: int = 0
    method: str = "fork"
    wall_s: float = 0.0
    usable_cores: float | None = None
    batch_size: int | None = None
    num_workers: int | None = None
    getitem: Repeated | None = None
    getitem_cpu_fraction: float | None = None
    n_slow: int | None = None
    slow_again: float | None = None
    dataset_is_batched: bool | None = None
    indexes_tensors: bool | None = None
    collate: Repeated | None = None
    may_keep: bool | None = None
    kept_s: float | None = None
    kept_bytes: float | None = None
    n_compared: int | None = None
    transport: Repeated | None = None
    pin: Repeated | None = None
    batch_bytes: int | None = None
    n_tensors: int | None = None
    n_objects: int | None = None
    bytes_by_dtype: dict[str, int] = {}
    narrow_bytes: int | None = None
    first_batch_s: float | None = None
    read_bytes: float | None = None
    rss_growth_bytes: float | None = None
    functions: tuple[HotFunction, ...] = ()
    lines: tuple[HotLine, ...] = ()
    host_lines: tuple[HostLine, ...] = ()
    collate_lines: tuple[HostLine, ...] = ()
    worker_lines: tuple[HostLine, ...] = ()
    curve: tuple[WorkerPoint, ...] = ()
    prefetch: tuple[WorkerPoint, ...] = ()
    load_s: float | None = None
    load_threads: int | None = None
    compute_s: float | None = None
    compute_basis: str = "not measured"
    missing: dict[str, str] = {}

    def point_at(self, num_workers: int | None) -> WorkerPoint | None:
        """Return the curve's point with this number of workers; None if it was not measured."""
        return next((point for point in self.curve if point.num_workers == num_workers), None)

    def made_s(self) -> float | None:
        """Return the seconds to make a batch's samples and collate them; None if they were not timed."""
        if self.getitem is None or not self.batch_size:
            return None
        return self.getitem.mean_s * self.batch_size + (self.collate.mean_s if self.collate is not None else 0.0)
