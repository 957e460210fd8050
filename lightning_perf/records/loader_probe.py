"""Measurements of one loader: the cost of a sample, its costliest lines, and throughput by number of workers."""

from typing import Literal

from .base import Record
from .host_profile import HostLine

WAITING_REACH = 4
"""Most workers per core that are tried or recommended for a dataset that waits, e.g. for storage."""

MAX_WORKERS = 64
"""Most workers that are tried or recommended."""


class Repeated(Record, frozen=True, kw_only=True):
    """A duration measured several times, in seconds."""

    n: int
    mean_s: float
    p50_s: float
    p95_s: float
    max_s: float


class HotFunction(Record, frozen=True, kw_only=True):
    """A function in which making samples spends its time.

    Attributes:
        name: Qualified name if known, e.g. ``"Images.augment"``.
        file: Source file; empty for one built in or in C.
        line: Its first line; 0 where there is none.
        share: Share of ``__getitem__``'s time (of collate's where ``where`` says so) spent in it and what it calls.
        own_share: The same without what it calls.
        blamed_share: Share of the time during which it was the innermost function of the user's, so that libraries and
            C code count for the function that called them; where no function of the user's was running, the innermost
            Python one. These shares add up to at most 1, and the functions are ordered by them.
        n_calls: Calls per sample (a batch for collate); None if a sampling profiler found it.
        where: ``"getitem"`` or ``"collate"``.
        kind: ``"python"``, or ``"native"`` where most of ``blamed_share`` is spent in C code called from it, operators
            on arrays and tensors included.
        basis: How it was found: ``"stack samples"``; ``"cProfile"`` or ``"pyinstrument"`` in older sessions.
        is_users: Whether it is the user's code rather than the standard library's or an installed package's.
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
        share: Of the function's time, what the line calls included.
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
        num_workers: Worker processes; 0: batches made in the asking process.
        prefetch_factor: Batches each worker made ahead; None without workers.
        batch_s: Seconds from one batch to the next once the workers ran.
        low_s: Lower end of a 95 % interval of ``batch_s``.
        first_batch_s: Until the first batch came, the start of the workers included.
        take_s: Seconds of the asking process's CPU to take one batch; None if it was not measured.
        step_s: Seconds per step where the asking process computes for ``LoaderProbe.load_s`` between two batches, as
            the training does; None if it was not measured.
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
            copied); ``failed`` (the data raised, hung, or its process died before anything was known).
        reason: Why it is not ``measured``; empty otherwise.
        index: Position among the loaders of the stage.
        method: ``"fork"`` or ``"spawn"``: how the child came by the dataset.
        is_beside_training: Whether the training went on meanwhile and shared the cores; only in older sessions.
        batch_size: Samples per batch; None if unknown.
        getitem: Time of one ``dataset[i]`` in one process without workers (per sample of a batch where the
            dataset makes whole batches); None if not measured, as all that follow.
        getitem_cpu_fraction: CPU time of making samples (all threads) ÷ wall time, queueing for a core aside: near 1
            it computes, near 0 it waits.
        n_slow: Samples that took more than five times the median.
        slow_again: Share of the slow samples' time beyond the median that they took again when they were made a second
            time; samples that waited, e.g. for storage, count in full. Near 0, the machine made them slow. None without
            slow samples, or if none could be made twice.
        dataset_is_batched: Whether one index gives a whole batch (``batch_size=None`` or ``__getitems__``).
        indexes_tensors: Whether samples are rows of tensors that lie in memory, fetched one at a time.
        transport: Time to move a batch from a worker to the main process: pickling, shared memory, rebuilding.
        pin: Time to pin a batch; None without a device that needs it.
        batch_bytes: Bytes of the tensors and arrays of a batch.
        n_objects: Other Python objects in a batch (numbers, strings, containers).
        bytes_by_dtype: Bytes of a batch by dtype, e.g. ``{"float64": 1048576}``.
        narrow_bytes: Bytes of float fields whose every value of every sampled batch fits an 8-bit integer scale
            (0…255, or 0…1 in steps of 1/255): what was probably made from bytes.
        first_batch_s: First batch with the loader as it is; the start of its workers included.
        read_bytes: Bytes read from storage per sample; None if unknown.
        rss_growth_bytes: Growth of a process's private memory per sample, after warm-up.
        functions: The costliest functions, worst first: those of ``__getitem__``, then those of collate.
        lines: Lines of the first of them.
        host_lines: The lines of your code that take the time of making samples in one process, costliest first.
        collate_lines: The same for collate.
        worker_lines: The same for all workers of the point of the curve with the most workers.
        curve: Throughput against the number of workers, fewest first: 0, 1, 2, 4 … usable cores and the number in use;
            where samples wait rather than compute, beyond the cores. It ends where more workers bring no more.
        prefetch: The same with other prefetch factors, where samples are bursty.
        load_s: Seconds per step that the points of the curve computed beside their workers; None for none.
        compute_s: Seconds per step on one cached batch, with nothing to load; None if not measured.
        compute_basis: How ``compute_s`` was measured, or why it was not.
        missing: Why a field is None.
    """

    status: Literal["measured", "partial", "refused", "failed"]
    reason: str = ""
    stage: str = "train"
    index: int = 0
    method: str = "fork"
    wall_s: float = 0.0
    is_beside_training: bool = False
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
        """Return the point of the curve with so many workers; None where it was not tried."""
        return next((point for point in self.curve if point.num_workers == num_workers), None)

    def made_s(self) -> float | None:
        """Return the seconds to make a batch's samples and collate them; None if they were not timed."""
        if self.getitem is None or not self.batch_size:
            return None
        return self.getitem.mean_s * self.batch_size + (self.collate.mean_s if self.collate is not None else 0.0)
