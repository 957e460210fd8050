"""Bounds of the step time by number of workers, from the cost of a batch and the cores, for loaders not probed."""

import math

import msgspec

from lightning_perf.records import LoaderProbe, LoaderSettings, Session, StageTimes

from .signals import cores_per_rank, is_cpu_run
from .thresholds import (
    COMPUTES_MIN_FRACTION,
    DEFAULT_PREFETCH,
    SHM_MAX_FRACTION,
    TRANSPORT_HIGH_S,
    TRANSPORT_LOW_S,
    WORKER_MIN_CORES,
)

CORES = "the cores of this rank"
BATCHES = "the batches per epoch"
SHARDS = "the shards of the dataset"
SHM = "the size of /dev/shm"


class WorkerStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step time with a given number of workers.

    Attributes:
        step_s: Seconds per step; their interval is ``low_s`` to ``high_s``.
        fetch_s: Seconds from one batch to the next without compute.
        is_measured: Whether the probe measured the step, instead of only the loader.
    """

    num_workers: int
    step_s: float
    low_s: float
    high_s: float
    fetch_s: float
    is_measured: bool = False


def batch_cost(stage: StageTimes, n_now: int, step_s: float, compute_s: float, wait_s: float) -> tuple[float, str]:
    """Return the seconds to make one batch, and how they were obtained."""
    fetch = stage.fetch
    if n_now == 0:
        if fetch is None or fetch.wait_s.p50 <= 0:
            return wait_s, "mean wait for a batch"
        return fetch.wait_s.p50, "median wait for a batch, made in the training process"
    measured_s = fetch.in_process_batch_s if fetch is not None else None
    # If n workers would hide the measured cost, it does not explain the wait: the workers slow each other down.
    if measured_s is not None and measured_s > n_now * compute_s:
        return measured_s, "measured in a process without workers"
    return n_now * step_s, f"{n_now} workers together deliver one batch per step"


def step_bounds(session: Session, batch_s: float, compute_s: float, n_workers: int) -> WorkerStep:
    """Return the step time between two bounds: each worker has its own core, or workers share the cores."""
    if n_workers == 0:
        step_s = compute_s + batch_s
        return WorkerStep(num_workers=0, step_s=step_s, low_s=step_s, high_s=step_s, fetch_s=batch_s)
    cores = cores_per_rank(session)
    if is_cpu_run(session):
        n_threads = min(session.settings.torch.n_threads or cores, cores)
        shared_s = max(batch_s / n_workers, (compute_s * n_threads + batch_s) / cores)
    else:  # the training process keeps one core busy launching work
        shared_s = batch_s / max(1.0, min(n_workers, cores - 1))
    low_s = max(compute_s + TRANSPORT_LOW_S, batch_s / n_workers)
    high_s = max(low_s, compute_s + TRANSPORT_HIGH_S, shared_s)
    return WorkerStep(num_workers=n_workers, step_s=low_s, low_s=low_s, high_s=high_s, fetch_s=batch_s / n_workers)


def most_workers(session: Session, loader: LoaderSettings, probe: LoaderProbe | None) -> tuple[int, str]:
    """Return the largest useful number of workers, and the limit that sets it."""
    cores = cores_per_rank(session)
    caps = {CORES: math.floor(cores) if cores >= WORKER_MIN_CORES else 0}
    on_core = probe.getitem_cpu_fraction if probe is not None else None
    if probe is not None and on_core is not None and on_core < COMPUTES_MIN_FRACTION:
        caps[CORES] = max(caps[CORES], max((point.num_workers for point in probe.curve), default=0))
    if loader.n_batches is not None:
        caps[BATCHES] = loader.n_batches
    if loader.n_shards is not None:
        caps[SHARDS] = loader.n_shards
    shm_bytes = session.machine.shm_bytes
    if probe is not None and shm_bytes is not None and probe.batch_bytes:
        n_batches = shm_bytes / max(1, session.machine.local_world_size) / probe.batch_bytes
        caps[SHM] = math.floor(SHM_MAX_FRACTION * n_batches / (loader.prefetch_factor or DEFAULT_PREFETCH))
    basis = min(caps, key=lambda name: caps[name])  # of equal limits, the first: the cores
    return caps[basis], basis
