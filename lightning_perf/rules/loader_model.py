"""A loader beside the step that it feeds: how long a step takes with so many workers. Numbers only, no session.

``n`` workers that take ``batch_s`` for a batch deliver one every ``batch_s / n``; the step takes as long as computing
or as fetching, whichever is longer. Three things make it longer than that. Workers that compute and the training
process share cores, also with other programs: while more of them want to run than there are cores, each gets its even
share of them, which is what a fair scheduler gives. Threads that compute one operation together go no faster than the
one that gets least. And batches are handed out in order, each made by the next worker in turn and begun only once there
is room ahead, so that batches of uneven cost stop the step although others are ready.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from lightning_perf.records.loader_probe import MAX_WORKERS, WAITING_REACH, LoaderProbe, WorkerPoint

# A setting within this fraction of the best is as good: differences below it cannot be measured in a training.
SLACK = 0.02
# What the main process pays to take a batch of a few small tensors from a worker (queue, shared memory, unpickling),
# from about 50 us on an idle machine to 500 us on a busy one. A batch that is made faster gains nothing by workers.
TRANSPORT_LOW_S = 50e-6
TRANSPORT_HIGH_S = 500e-6
# Fewer cores than this for a rank leave none for a worker that computes beside the training process itself.
MIN_CORES = 2.0
# Making samples that is on a core for less than this share of its time waits rather than computes.
COMPUTES_FRACTION = 0.5
# Of /dev/shm: what batches in flight may fill (PD112 asks for twice what they need).
SHM_SHARE = 0.5
DEFAULT_PREFETCH = 2
PREFETCH_FACTORS = (2, 4, 8)
# Standard deviation ÷ mean of a batch's cost above which its unevenness is worth simulating: below, two batches ahead
# even it out. Samples of exponentially distributed cost, 32 of them, have 0.18.
UNEVEN = 0.25
# What two fits with the same loader in one minute differ by, though nobody takes their cores: clocks, caches and memory
# are shared with other programs and other machines of the host. Fastest and slowest of three were 7 to 13 % off their
# middle (benchmarks/loader/run.py).
MIN_ERROR = 0.1
# Where no curve was measured, or a training ran beside.
ERROR_WITHOUT_CURVE = 0.2
ERROR_BESIDE_TRAINING = 0.1
# What sharing cores costs may be so much more or less than the model says: a scheduler is fair over milliseconds only.
# Measured beside two threads: 0.85 to 1.2 of it (benchmarks/loader).
SHARING_ERROR = 0.25
_N_SIMULATED = 256


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What a loader costs.

    Attributes:
        batch_s: Seconds for a batch without workers.
        worker_batch_s: Seconds that a worker alone on its core takes for one, handing it over included.
        take_s: Seconds of the main process to take a batch from a worker.
        cpu_fraction: Share of a worker's time on a core, 0…1; the rest it waits.
        others: Cores that others took from the workers while they were timed; None where they did not want all cores.
        error: Relative half width of the interval of these times.
        costs: Cost of successive batches ÷ their mean; empty where they are even.
    """

    batch_s: float
    worker_batch_s: float
    take_s: float = 150e-6
    cpu_fraction: float = 1.0
    others: float | None = None
    error: float = ERROR_WITHOUT_CURVE
    costs: tuple[float, ...] = ()


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What a training asks of its loader, and of the cores.

    Attributes:
        compute_s: Seconds of a step with nothing to wait for and no worker on its cores.
        cores: Cores of this rank.
        threads: Cores that the training process keeps busy while it computes.
        others: Cores that other programs keep busy, on average.
        others_most: The same at its most, for the interval; taken to be ``others`` where it is less.
        computes_on_cores: Whether the computing itself slows down with the cores shared (no accelerator).
        error: Relative half width of the interval of ``compute_s``.
    """

    compute_s: float
    cores: float
    threads: float = 1.0
    others: float = 0.0
    others_most: float = 0.0
    computes_on_cores: bool = True
    error: float = MIN_ERROR


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says of one setting.

    Attributes:
        num_workers: Workers.
        prefetch_factor: Batches each makes ahead; None without workers.
        step_s: Seconds a step.
        low_s: Lower end of its interval.
        high_s: Upper end.
        fetch_s: Seconds from one batch to the next if nobody computed meanwhile: the loader's own ceiling.
    """

    num_workers: int
    prefetch_factor: int | None
    step_s: float
    low_s: float
    high_s: float
    fetch_s: float


def forecast(delivery: Delivery, demand: Demand, num_workers: int, prefetch_factor: int = DEFAULT_PREFETCH) -> Forecast:
    """A step with so many workers.

    Args:
        delivery: The loader.
        demand: The training.
        num_workers: 0 for batches made between two steps.
        prefetch_factor: Batches each worker makes ahead.
    """
    fetch_s = _fetch_s(delivery, demand.cores, num_workers)
    if num_workers == 0:
        step_s = demand.compute_s + delivery.batch_s
        spread_s = delivery.error * delivery.batch_s + demand.error * demand.compute_s
        return Forecast(num_workers=0, prefetch_factor=None, step_s=step_s, low_s=step_s - spread_s,
                        high_s=step_s + spread_s, fetch_s=fetch_s)  # fmt: skip
    uneven = _unevenness(delivery, demand, num_workers, prefetch_factor)
    step_s = uneven * _step_s(delivery, demand, num_workers, 1.0)
    alone = msgspec.structs.replace(demand, cores=math.inf)
    shared_s = max(0.0, step_s - uneven * _step_s(delivery, alone, num_workers, 1.0))
    quick = msgspec.structs.replace(demand, compute_s=(1.0 - demand.error) * demand.compute_s, others=0.0)
    slow = msgspec.structs.replace(
        demand, compute_s=(1.0 + demand.error) * demand.compute_s, others=max(demand.others, demand.others_most)
    )
    quick_s = _step_s(delivery, quick, num_workers, 1.0 - delivery.error)
    quick_alone_s = _step_s(delivery, msgspec.structs.replace(quick, cores=math.inf), num_workers, 1.0 - delivery.error)
    low_s = quick_s - SHARING_ERROR * max(0.0, quick_s - quick_alone_s)
    slow_s = uneven * _step_s(delivery, slow, num_workers, 1.0 + delivery.error)
    return Forecast(
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        step_s=step_s,
        low_s=min(low_s, step_s),
        high_s=max(slow_s, step_s) + SHARING_ERROR * shared_s,
        fetch_s=fetch_s,
    )


def forecasts(delivery: Delivery, demand: Demand, n_cap: int, prefetch_factor: int | None = None) -> list[Forecast]:
    """Every number of workers from 0 to the cap, at one prefetch factor."""
    factor = prefetch_factor or DEFAULT_PREFETCH
    return [forecast(delivery, demand, n, factor) for n in range(n_cap + 1)]


def choose(options: Sequence[Forecast]) -> Forecast:
    """The fewest workers, then the fewest batches ahead, whose step is within ``SLACK`` of the best.

    Raises:
        ValueError: There are none.
    """
    best_s = min(each.step_s for each in options)
    good = [each for each in options if each.step_s <= (1 + SLACK) * best_s]
    return min(good, key=lambda each: (each.num_workers, each.prefetch_factor or 0))


def worker_cap(
    cores: float,
    cpu_fraction: float,
    n_batches: int | None = None,
    shm_batches: float | None = None,
    prefetch_factor: int = DEFAULT_PREFETCH,
) -> int:
    """The most workers that may be prescribed.

    Args:
        cores: Of this rank.
        cpu_fraction: Workers that compute get no more than the cores, and none where there are less than two; those
            that wait may outnumber them.
        n_batches: Batches an epoch; None when unsized.
        shm_batches: Batches that this rank's part of /dev/shm holds; None when not known.
        prefetch_factor: Batches each worker makes ahead.
    """
    computing = math.floor(cores) if cores >= MIN_CORES else 0
    cap = computing
    if cpu_fraction < COMPUTES_FRACTION:
        cap = max(computing, min(WAITING_REACH * max(1, math.floor(cores)),
                                 math.floor(cores / max(cpu_fraction, 1e-3))))  # fmt: skip
    if n_batches is not None:
        cap = min(cap, n_batches)
    if shm_batches is not None:
        cap = min(cap, math.floor(SHM_SHARE * shm_batches / prefetch_factor))
    return max(0, min(cap, MAX_WORKERS))


def fit_delivery(probe: LoaderProbe) -> Delivery | None:
    """The loader that was probed.

    The time of a batch in a worker and the cores that the workers found are those with which the model comes closest to
    the curve, in logarithms, each point weighted by how sure it is.

    Returns:
        None where the probe does not say what a batch costs.
    """
    alone = next((point.batch_s for point in probe.curve if point.num_workers == 0), None)
    batch_s = alone or _made_s(probe)
    if batch_s is None or not 0 < batch_s < math.inf:
        return None
    cpu_fraction = 1.0 if probe.getitem_cpu_fraction is None else min(1.0, max(0.0, probe.getitem_cpu_fraction))
    points = [point for point in probe.curve if point.num_workers > 0 and point.batch_s > 0]
    takes = [point.take_s for point in points if point.take_s]
    take_s = float(np.median(takes)) if takes else math.sqrt(TRANSPORT_LOW_S * TRANSPORT_HIGH_S)
    error = ERROR_BESIDE_TRAINING if probe.is_beside_training else 0.0
    others = None
    if points:
        usable_cores = probe.usable_cores or 1.0
        worker_batch_s, misfit, cores = _fit(points, batch_s, cpu_fraction, take_s, usable_cores)
        error += max(MIN_ERROR, misfit)
        wanted = cpu_fraction * max(point.num_workers for point in points)
        if wanted >= usable_cores and not probe.is_beside_training:
            others = max(0.0, wanted * (usable_cores / cores - 1.0))  # each had cores ÷ (wanted + others) of one
    else:
        worker_batch_s = batch_s + (probe.transport.p50_s if probe.transport is not None else take_s)
        error += ERROR_WITHOUT_CURVE
    return Delivery(
        batch_s=batch_s,
        worker_batch_s=worker_batch_s,
        take_s=take_s,
        cpu_fraction=cpu_fraction,
        others=others,
        error=min(error, 0.5),
        costs=batch_costs(probe),
    )


def batch_costs(probe: LoaderProbe) -> tuple[float, ...]:
    """Cost of a row of batches ÷ their mean, where slow samples make batches uneven; else nothing.

    Samples are taken to be either usual (the median) or slow (all those that were, alike; the longest where none stood
    out), as many of them slow as explain the mean.
    """
    getitem = probe.getitem
    n = 1 if probe.dataset_is_batched else probe.batch_size
    if getitem is None or not n or not getitem.p50_s < getitem.mean_s < getitem.max_s < math.inf:
        return ()
    beyond, extra = getitem.mean_s - getitem.p50_s, getitem.max_s - getitem.p50_s
    if probe.n_slow:
        extra = min(extra, beyond * getitem.n / probe.n_slow)
    slow = min(1.0, beyond / extra)
    if math.sqrt(n * slow * (1 - slow)) * extra < UNEVEN * n * getitem.mean_s:
        return ()
    drawn = np.random.default_rng(0).binomial(n, slow, _N_SIMULATED)
    costs = n * getitem.p50_s + drawn * extra
    return tuple(float(each) for each in costs / costs.mean())


def _made_s(probe: LoaderProbe) -> float | None:
    if probe.getitem is None or not probe.batch_size:
        return None
    return probe.getitem.mean_s * probe.batch_size + (probe.collate.mean_s if probe.collate is not None else 0.0)


def _fetch_s(delivery: Delivery, cores: float, num_workers: int) -> float:
    if num_workers == 0:
        return delivery.batch_s
    stretch = max(1.0, delivery.cpu_fraction * num_workers / cores)
    waits_s = (1 - delivery.cpu_fraction) * delivery.worker_batch_s
    return max((waits_s + delivery.cpu_fraction * delivery.worker_batch_s * stretch) / num_workers, delivery.take_s)


def _step_s(delivery: Delivery, demand: Demand, n: int, factor: float) -> float:
    """A step of even batches whose cost is multiplied by ``factor``."""
    waits_s = (1 - delivery.cpu_fraction) * delivery.worker_batch_s * factor
    on_core_s = delivery.cpu_fraction * delivery.worker_batch_s * factor
    compute_s = demand.compute_s + delivery.take_s
    rates = _rates(demand, delivery.cpu_fraction * n)
    shared_s = waits_s + on_core_s / rates.workers
    if not demand.computes_on_cores:
        return max(compute_s, shared_s / n)
    if compute_s * n >= rates.compute * shared_s:
        # The workers keep up. They are busy for a part of the step, and slow it down for as long.
        return compute_s + (1 - rates.compute) * shared_s / n
    # They do not. Once the step has computed, the rest of its next batch is made with the cores free.
    free_s = waits_s + on_core_s * max(1.0, (delivery.cpu_fraction * n + demand.others) / demand.cores)
    return compute_s / rates.compute + (1 - compute_s * n / (rates.compute * shared_s)) * min(free_s, shared_s) / n


class _Rates(NamedTuple):
    """How fast the computing and the workers are while both run: 1 is as fast as where neither disturbs the other."""

    compute: float
    workers: float


def _rates(demand: Demand, busy: float) -> _Rates:
    """The rates beside ``busy`` workers on cores.

    One thread gets its even share of the cores. Of several that compute one operation together, each has a core of its
    own until a worker comes to one of them: then all wait for the thread there, which has half of it. It is slower
    still, as where the work changes to another core the next thread waits; on two cores, two threads lost 0.64 to 0.9
    of the time that one or two workers ran beside them, for which the square of the slowest thread's share stands.
    """
    wanted = demand.threads + demand.others
    even = _even_share(wanted + busy, demand.cores)
    beside = even / _even_share(wanted, demand.cores)  # what others take is in what was measured of the computing
    many = min(1.0, max(0.0, demand.threads - 1.0)) if demand.computes_on_cores else 0.0
    if many == 0.0:
        return _Rates(beside, even)
    slowest = _slowest_share(demand, demand.others + busy)
    slowed = min(1.0, slowest / _slowest_share(demand, demand.others)) ** 2
    return _Rates((1 - many) * beside + many * slowed, (1 - many) * even + many * min(even, slowest))


def _even_share(wanted: float, cores: float) -> float:
    return min(1.0, cores / wanted) if wanted > 0 else 1.0


def _slowest_share(demand: Demand, beside: float) -> float:
    """Share of a core of the thread that gets least, with so much beside the threads, spread over cores one by one."""
    if math.isinf(demand.cores):
        return 1.0
    low = math.floor(beside)
    at_low, at_high = (
        1.0 / max(1, math.ceil((demand.threads + each) / demand.cores - 1e-9)) for each in (low, low + 1)
    )
    return at_low + (beside - low) * (at_high - at_low)


def _unevenness(delivery: Delivery, demand: Demand, n: int, prefetch_factor: int) -> float:
    """By how much batches of uneven cost stretch a step, at least 1."""
    if not delivery.costs:
        return 1.0
    compute_s = demand.compute_s + delivery.take_s
    rates = _rates(demand, delivery.cpu_fraction * n)
    batch_s = delivery.worker_batch_s * ((1 - delivery.cpu_fraction) + delivery.cpu_fraction / rates.workers)
    if demand.computes_on_cores:
        compute_s /= rates.compute
    even_s = max(compute_s, batch_s / n)
    return max(1.0, _simulated_s([batch_s * cost for cost in delivery.costs], compute_s, n, prefetch_factor) / even_s)


def _simulated_s(costs_s: Sequence[float], compute_s: float, n: int, prefetch_factor: int) -> float:
    """Mean step when batches of these costs are made by ``n`` workers in turn and taken in order."""
    made_s = [0.0] * len(costs_s)
    taken_s = [0.0] * len(costs_s)
    ahead = n * prefetch_factor
    for i, cost_s in enumerate(costs_s):
        begun_s = max(made_s[i - n] if i >= n else 0.0, taken_s[i - ahead] if i >= ahead else 0.0)
        made_s[i] = begun_s + cost_s
        taken_s[i] = max(made_s[i], taken_s[i - 1] + compute_s if i else 0.0)
    first = min(ahead, len(costs_s) // 2)
    return (taken_s[-1] - taken_s[first]) / (len(costs_s) - 1 - first)


def _fit(
    points: Sequence[WorkerPoint], batch_s: float, cpu_fraction: float, take_s: float, usable_cores: float
) -> tuple[float, float, float]:
    """Seconds of a batch in a worker alone on its core, the relative misfit of the model, and the cores it found."""
    # Points at which taking batches was the limit say nothing of making them.
    telling = [point for point in points if point.batch_s > 1.2 * take_s]
    if not telling:
        fastest_s = min(point.num_workers * point.batch_s for point in points)
        return max(batch_s, fastest_s), ERROR_WITHOUT_CURVE, usable_cores
    workers = np.array([point.num_workers for point in telling], dtype=np.float64)
    measured = np.log([point.batch_s for point in telling])
    widths = np.array([max(MIN_ERROR, (p.high_s - p.low_s) / (2 * p.batch_s)) for p in telling])
    weights = 1 / widths**2 / np.sum(1 / widths**2)
    best = (math.inf, batch_s, usable_cores)
    # From the most cores down, so that fewer are believed only where they explain the curve better.
    for cores in np.linspace(max(1.0, usable_cores), min(0.5, usable_cores), 24):
        stretched = (1 - cpu_fraction) + cpu_fraction * np.maximum(1.0, cpu_fraction * workers / cores)
        shape = np.log(stretched / workers)
        level = float(np.sum(weights * (measured - shape)))
        misfit = math.sqrt(float(np.sum(weights * (measured - shape - level) ** 2)))
        if misfit < best[0] - 0.005:
            best = (misfit, math.exp(level), float(cores))
    return best[1], best[0], best[2]
