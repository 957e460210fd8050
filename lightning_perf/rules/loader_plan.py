"""How many workers the loader of a session needs, and what its step would then take."""

from __future__ import annotations

import math

import msgspec

from lightning_perf.records import (
    Evidence,
    HostTelemetry,
    LoaderProbe,
    LoaderSettings,
    Session,
    StageTimes,
)

from .loader_model import (
    DEFAULT_PREFETCH,
    MIN_CORES,
    PREFETCH_FACTORS,
    SLACK,
    TRANSPORT_HIGH_S,
    TRANSPORT_LOW_S,
    Delivery,
    Demand,
    Forecast,
    choose,
    fit_delivery,
    forecast,
    forecasts,
    worker_cap,
)
from .signals import cores_per_rank, is_cpu_run

# A batch in the probe and in the training differ by more than this only if one of them was not what it seemed.
MAX_SCALE = 2.0
# Less than this of a core is the system's own work, and what samples of it are uncertain by.
MIN_OTHERS = 0.1
# A batch that takes longer is worth making faster, whether workers help or not.
MAX_CHEAP_S = 4 * TRANSPORT_HIGH_S


CORES = "the cores of this rank"
BATCHES = "the batches of an epoch"
SHM = "what /dev/shm holds"


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says about one loader.

    Attributes:
        n_now: Workers in use.
        batch_s: Seconds that one process needs to make one batch.
        basis: Where ``batch_s`` comes from.
        compute_s: Seconds a step takes without waiting for data.
        n_needed: Workers that would hide the loading behind the computing.
        n_cap: The most workers that can be of use; 0 on less than two cores.
        n_workers: The number to prescribe; 0 where more workers cannot help.
        saved_low_s: Seconds a step that this saves at least: the dataset computes and shares the cores.
        saved_high_s: The same at most: the dataset waits (disk, network) and leaves the cores alone.
        now: The step by the model with the workers in use; None where the loader was not probed, as all that follow.
        chosen: The step with the workers to choose: the fewest within 2 % of the best; may be those in use.
        naive: The step with as many workers as cores.
        options: The step by number of workers, from 0 to ``n_cap``.
        points: Numbers of workers that the probe tried.
        is_cheap: Whether workers would save nothing even on cores of their own; by the model.
        cap_basis: What sets ``n_cap``.
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
    now: Forecast | None = None
    chosen: Forecast | None = None
    naive: Forecast | None = None
    options: tuple[Forecast, ...] = ()
    points: tuple[int, ...] = ()
    is_cheap: bool = False
    cap_basis: str = CORES

    @property
    def cost_more(self) -> bool:
        """Whether the workers in use cost more than they save, by the model."""
        return self.n_now > 0 and self.chosen is not None and self.chosen.num_workers == 0 and self.is_cheap

    @property
    def is_too_cheap(self) -> bool:
        """Whether a batch costs less to make than to fetch from a worker."""
        if self.chosen is not None:
            is_cheap = self.batch_s < (MAX_CHEAP_S if self.is_cheap else TRANSPORT_HIGH_S)
            return is_cheap and self.n_now == 0 and self.chosen.num_workers == 0
        return self.n_now == 0 and self.batch_s < TRANSPORT_HIGH_S


def plan_workers(session: Session, loader: LoaderSettings, stage: StageTimes, wait_s: float) -> WorkerPlan:
    """Finds the smallest number of workers that hides a loader's work, within what the cores allow.

    Where the loader was probed, by the model of ``loader_model`` fitted to what was measured. Else ``n`` workers
    deliver a batch every ``batch_s / n`` seconds, and the step waits where that exceeds its compute time.

    Args:
        session: For the cores and threads.
        loader: Its settings; ``num_workers`` must be known.
        stage: The steps that it fed.
        wait_s: Seconds a step lost to waiting, by the device's clock where there is one.
    """
    probe = session.loader_probe
    if probe is not None and (probe.stage, probe.index) == (loader.stage, loader.index):
        plan = _probed_plan(session, probe, loader, stage, wait_s)
        if plan is not None:
            return plan
    n_now = loader.num_workers or 0
    step_s = stage.step_s.mean
    compute_s = max(step_s - wait_s, 0.0)
    batch_s, basis = _batch_cost(stage, n_now, step_s, compute_s, wait_s)
    cores = cores_per_rank(session)
    n_cap = math.floor(cores) if cores >= MIN_CORES else 0
    cap_basis = CORES
    if loader.n_batches is not None and loader.n_batches < n_cap:
        n_cap, cap_basis = loader.n_batches, BATCHES
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
        cap_basis=cap_basis,
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


def demand_of(session: Session, stage: StageTimes, wait_s: float, delivery: Delivery, n_now: int) -> Demand:
    """What the training asks of loader and cores.

    Args:
        session: For cores, threads and what was sampled.
        stage: The steps.
        wait_s: Seconds a step lost to waiting.
        delivery: The loader.
        n_now: Workers in use.
    """
    step_s = stage.step_s.mean
    compute_s = max(step_s - wait_s, 0.0)
    probe = session.loader_probe
    if n_now and probe is not None and probe.compute_s is not None:
        compute_s = min(compute_s, probe.compute_s)  # workers take their part of the cores from what was timed
    cores = cores_per_rank(session)
    is_cpu = is_cpu_run(session)
    most = min(float(session.settings.torch.n_threads or cores), cores) if is_cpu else 1.0
    host = session.telemetry.host if session.telemetry is not None else None
    threads = most
    if host is not None and host.process_cpu_cores is not None and compute_s > 0:
        loading_s = 0.0 if n_now else delivery.cpu_fraction * wait_s
        threads = (host.process_cpu_cores.mean * step_s - loading_s) / compute_s
        # What it would have had, had it not stood in a queue for a core.
        threads /= 1.0 - min(0.5, host.process_queueing_fraction or 0.0)
    least = min(1.0, most) if is_cpu else 0.1
    others, others_most = _others(session, host, delivery)
    return Demand(
        compute_s=compute_s,
        cores=cores,
        threads=max(least, min(threads, most)),
        others=others,
        others_most=others_most,
        computes_on_cores=is_cpu,
    )


def _others(session: Session, host: HostTelemetry | None, delivery: Delivery) -> tuple[float, float]:
    """Cores that other programs took: as far as can be expected, and at most. 0 where nothing tells.

    What they took of cores that nobody else wanted they may give back: where workers were seen to want all cores, only
    what those did not get is expected to be missing again.
    """
    if session.machine.local_world_size > 1:
        return 0.0, 0.0  # ranks of one node are no others: their part of the cores is taken off already
    seen = []
    if delivery.others is not None:
        seen.append(delivery.others)
    # Under a quota, others may be busy on cores that are not needed.
    if host is not None and host.throttle_periods is None:
        busy, own = host.cpu_busy_fraction, host.process_cpu_cores
        if busy is not None and own is not None:
            workers = host.workers_cpu_cores.mean if host.workers_cpu_cores is not None else 0.0
            seen.append(max(0.0, busy.mean * session.machine.usable_cores - own.mean - workers))
    seen = [cores if cores >= MIN_OTHERS else 0.0 for cores in seen]
    return min(seen, default=0.0), max(seen, default=0.0)


def delivery_of(session: Session, stage: StageTimes | None, wait_s: float, n_now: int) -> Delivery | None:
    """The loader that was probed; where the training made its batches itself, as fast as it made them."""
    probe = session.loader_probe
    delivery = fit_delivery(probe) if probe is not None else None
    if delivery is None or n_now or stage is None or stage.fetch is None or wait_s <= 0:
        return delivery
    made_s = stage.fetch.wait_s.mean
    scale = made_s / delivery.batch_s
    if not 1 / MAX_SCALE <= scale <= MAX_SCALE:
        return msgspec.structs.replace(delivery, error=min(0.5, 2 * delivery.error))
    return msgspec.structs.replace(delivery, batch_s=made_s, worker_batch_s=scale * delivery.worker_batch_s)


def _probed_plan(
    session: Session, probe: LoaderProbe, loader: LoaderSettings, stage: StageTimes, wait_s: float
) -> WorkerPlan | None:
    n_now = loader.num_workers or 0
    delivery = delivery_of(session, stage, wait_s, n_now)
    if delivery is None:
        return None
    demand = demand_of(session, stage, wait_s, delivery, n_now)
    prefetch_factor = loader.prefetch_factor or DEFAULT_PREFETCH
    n_cap, cap_basis = _cap(session, probe, loader, demand.cores, delivery.cpu_fraction)
    options = forecasts(delivery, demand, n_cap, prefetch_factor)
    chosen = choose(options)
    if delivery.costs and chosen.num_workers:
        chosen = choose([chosen, *(forecast(delivery, demand, chosen.num_workers, f)
                                   for f in PREFETCH_FACTORS if f > prefetch_factor)])  # fmt: skip
    roomy = msgspec.structs.replace(demand, cores=math.inf)
    is_cheap = choose(forecasts(delivery, roomy, max(1, n_cap), prefetch_factor)).num_workers == 0
    now = forecast(delivery, demand, n_now, prefetch_factor)
    n_naive = max(1, math.floor(demand.cores))
    step_s = stage.step_s.mean
    is_more = chosen.num_workers > n_now
    n_needed = math.ceil(delivery.worker_batch_s / max((1 + SLACK) * demand.compute_s, 1e-6))
    return WorkerPlan(
        n_now=n_now,
        batch_s=delivery.batch_s,
        basis="loader probe" + (", beside the training" if probe.is_beside_training else ""),
        compute_s=demand.compute_s,
        n_needed=max(1, n_needed),
        n_cap=n_cap,
        cap_basis=cap_basis,
        n_workers=chosen.num_workers if is_more else 0,
        saved_low_s=max(0.0, step_s - chosen.high_s) if is_more else 0.0,
        saved_high_s=max(0.0, step_s - chosen.low_s) if is_more else 0.0,
        now=now,
        chosen=chosen,
        naive=forecast(delivery, demand, n_naive, prefetch_factor),
        options=tuple(options),
        points=tuple(point.num_workers for point in probe.curve),
        is_cheap=is_cheap,
    )


def _cap(
    session: Session, probe: LoaderProbe, loader: LoaderSettings, cores: float, cpu_fraction: float
) -> tuple[int, str]:
    """The most workers that can be of use, and what sets that."""
    prefetch_factor = loader.prefetch_factor or DEFAULT_PREFETCH
    caps = {
        CORES: worker_cap(cores, cpu_fraction),
        BATCHES: worker_cap(cores, cpu_fraction, loader.n_batches),
        SHM: worker_cap(cores, cpu_fraction, None, _shm_batches(session, probe), prefetch_factor),
    }
    basis = min(caps, key=lambda name: caps[name])  # the first of equals: the cores
    return caps[basis], basis


def _shm_batches(session: Session, probe: LoaderProbe) -> float | None:
    """Batches that this rank's part of /dev/shm holds; None when not known."""
    size = session.machine.shm_bytes
    if size is None or not probe.batch_bytes:
        return None
    return size / max(1, session.machine.local_world_size) / probe.batch_bytes


def plan_evidence(plan: WorkerPlan) -> tuple[Evidence, ...]:
    """The steps that the model predicts; nothing where the loader was not probed."""
    if plan.chosen is None or plan.naive is None:
        return ()
    tried = ", ".join(str(n) for n in plan.points)
    basis = f"probed at {tried} workers" if tried else "from the cost of a sample"
    told = Evidence(metric=f"step expected with {_workers(plan.chosen)} ({basis})", value=plan.chosen.step_s, unit="s")
    if plan.naive.num_workers == plan.chosen.num_workers:
        return (told,)
    return (
        told,
        Evidence(metric=f"step expected with {_workers(plan.naive)}, one a core", value=plan.naive.step_s, unit="s"),
    )


def _workers(option: Forecast) -> str:
    return f"{option.num_workers} worker{'' if option.num_workers == 1 else 's'}"
