"""How many worker processes a loader needs, and what the step would then take."""

from __future__ import annotations

import math

import msgspec

from lightning_perf.records import LoaderSettings, Session, StageTimes

from .signals import cores_per_rank, is_cpu_run

# Workers are enough when a batch arrives within this fraction of the compute time: below what can be measured.
SLACK = 0.02
# What the main process pays to take a batch of a few small tensors from a worker (queue, shared memory, unpickling),
# from about 50 us on an idle machine to 500 us on a busy one. A batch that is made faster gains nothing by workers.
TRANSPORT_LOW_S = 50e-6
TRANSPORT_HIGH_S = 500e-6
# Fewer cores than this for a rank leave none for a worker beside the training process itself.
MIN_CORES = 2.0


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says about one loader.

    Attributes:
        n_now: Workers in use.
        batch_s: Seconds that one process needs to make one batch.
        basis: Where ``batch_s`` comes from.
        compute_s: Seconds a step takes without waiting for data.
        n_needed: Workers that would hide the loading behind the computing.
        n_cap: Workers that the cores of this rank allow; 0 on less than two cores.
        n_workers: The number to prescribe; 0 where more workers cannot help.
        saved_low_s: Seconds a step that this saves at least: the dataset computes and shares the cores.
        saved_high_s: The same at most: the dataset waits (disk, network) and leaves the cores alone.
    """

    n_now: int
    batch_s: float
    basis: str
    compute_s: float
    n_needed: int
    n_cap: int
    n_workers: int
    saved_low_s: float
    saved_high_s: float

    @property
    def is_too_cheap(self) -> bool:
        """Whether a batch costs less to make than to fetch from a worker."""
        return self.n_now == 0 and self.batch_s < TRANSPORT_HIGH_S


def plan_workers(session: Session, loader: LoaderSettings, stage: StageTimes, wait_s: float) -> WorkerPlan:
    """Finds the smallest number of workers that hides a loader's work, within what the cores allow.

    ``n`` workers deliver a batch every ``batch_s / n`` seconds; the step waits where that exceeds its compute time.

    Args:
        session: For the cores and threads.
        loader: Its settings; ``num_workers`` must be known.
        stage: The steps that it fed.
        wait_s: Seconds a step lost to waiting, by the device's clock where there is one.
    """
    n_now = loader.num_workers or 0
    step_s = stage.step_s.mean
    compute_s = max(step_s - wait_s, 0.0)
    batch_s, basis = _batch_cost(stage, n_now, step_s, compute_s, wait_s)
    cores = cores_per_rank(session)
    n_cap = math.floor(cores) if cores >= MIN_CORES else 0
    if loader.n_batches is not None:
        n_cap = min(n_cap, loader.n_batches)
    n_needed = max(1, math.ceil(batch_s / max((1 + SLACK) * compute_s, 1e-6)))
    n_workers = min(n_needed, n_cap)
    saved_low_s = saved_high_s = 0.0
    if n_workers > n_now:
        fastest_s = max(compute_s + TRANSPORT_LOW_S, batch_s / n_workers)
        slowest_s = max(fastest_s, compute_s + TRANSPORT_HIGH_S, _shared_step_s(session, batch_s, compute_s, n_workers))
        saved_low_s, saved_high_s = max(0.0, step_s - slowest_s), max(0.0, step_s - fastest_s)
    return WorkerPlan(
        n_now=n_now,
        batch_s=batch_s,
        basis=basis,
        compute_s=compute_s,
        n_needed=n_needed,
        n_cap=n_cap,
        n_workers=n_workers if n_workers > n_now else 0,
        saved_low_s=saved_low_s,
        saved_high_s=saved_high_s,
    )


def _batch_cost(stage: StageTimes, n_now: int, step_s: float, compute_s: float, wait_s: float) -> tuple[float, str]:
    """Seconds to make one batch, and how they are known."""
    fetch = stage.fetch
    if n_now == 0:
        if fetch is None or fetch.wait_s.p50 <= 0:
            return wait_s, "mean wait for a batch"
        return fetch.wait_s.p50, "median wait for a batch, made in the training process"
    measured_s = fetch.in_process_batch_s if fetch is not None else None
    # A measured cost that n workers would hide does not explain the wait: they get in one another's way.
    if measured_s is not None and measured_s > n_now * compute_s:
        return measured_s, "measured in a process without workers"
    return n_now * step_s, f"{n_now} workers deliver one batch a step between them"


def _shared_step_s(session: Session, batch_s: float, compute_s: float, n_workers: int) -> float:
    """The step where making samples takes a core of its own as long as it lasts."""
    cores = cores_per_rank(session)
    if not is_cpu_run(session):
        # The training process keeps one core busy launching work.
        return batch_s / max(1.0, min(n_workers, cores - 1))
    n_threads = min(session.settings.torch.n_threads or cores, cores)
    return max(batch_s / n_workers, (compute_s * n_threads + batch_s) / cores)
