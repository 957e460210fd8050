"""Telemetry that rules use; the functions say whether they raise Skip, or what they return, if it is missing."""

import statistics
from collections.abc import Iterator
from typing import Literal, NamedTuple

from lightning_perf.records import Evidence, GpuTelemetry, HostTelemetry, Session, Spread, StageTimes

from .findings import fact
from .rule import Skip
from .signals import COMPUTE_PHASES, is_cpu_run, phase_s
from .thresholds import (
    CHANGE_MIN,
    CHANGES_SHOWN,
    LOST_CORES_MAX_IDLE,
    LOST_CORES_MIN,
    MIN_CHANGE_POINTS,
    MIN_TELEMETRY_SAMPLES,
)
from .wording import size_text


def sampled_host(session: Session) -> HostTelemetry | None:
    """Return the host's telemetry, however few samples it has; None if it was not sampled."""
    return session.telemetry.host if session.telemetry is not None else None


def host_telemetry_of(session: Session) -> HostTelemetry:
    """Return the host's telemetry; raise Skip if it was not sampled, or too few times."""
    host = sampled_host(session)
    if host is None:
        reason = session.missing.get("telemetry.host") or session.missing.get("telemetry")
        raise Skip(reason or "the host was not sampled")
    if host.n_samples < MIN_TELEMETRY_SAMPLES:
        raise Skip(f"{host.n_samples} samples of the host; at least {MIN_TELEMETRY_SAMPLES} are needed")
    return host


def queueing_of(session: Session) -> float:
    """Return the fraction of its time that the training thread queues for a core behind other threads of its process.

    At most the number of cores that these threads keep busy. 0 if unknown; with loader workers, other ranks or more
    torch threads than cores, because it may queue behind those; and on a device, where queueing may be part of a wait.
    """
    host, machine = sampled_host(session), session.machine
    if host is None or host.n_samples < MIN_TELEMETRY_SAMPLES or host.process_cpu_cores is None:
        return 0.0
    has_others = host.n_workers or machine.local_world_size > 1 or (host.n_torch_threads or 0) > machine.usable_cores
    if has_others or not is_cpu_run(session):
        return 0.0
    queueing = host.process_queueing_fraction or 0.0
    return min(queueing, max(0.0, host.process_cpu_cores.mean - (1.0 - queueing)))


def device_telemetry_of(session: Session) -> GpuTelemetry:
    """Return the telemetry of the device in use by this process; raise Skip if it was not sampled, or too few times."""
    devices = session.telemetry.devices if session.telemetry is not None else ()
    if not devices:
        reason = session.missing.get("telemetry.devices") or session.missing.get("telemetry")
        raise Skip(reason or ("the training runs on the CPU" if is_cpu_run(session) else "no device was sampled"))
    if devices[0].n_samples < MIN_TELEMETRY_SAMPLES:
        raise Skip(
            f"{devices[0].n_samples} samples of {devices[0].device}; at least {MIN_TELEMETRY_SAMPLES} are needed"
        )
    return devices[0]


class LoadingWait(NamedTuple):
    """The causes of data wait, as fractions of it; the rest is compute in the loader.

    Attributes:
        queueing: Ready to run, but waiting for a core. None if not known.
        blocked: Waiting for storage, a network or a lock. None if not known.
    """

    queueing: float | None
    blocked: float | None


def loading_wait(host: HostTelemetry, n_workers: int) -> LoadingWait:
    """Return the causes of data wait, from the states of the training thread and of the workers.

    A thread that fetches a batch runs, queues for a core, or is blocked. Without workers, these states are those of
    loading. With workers, only the blocked time is spent waiting for workers, so their states are weighted by it: the
    training thread may queue for a core during its fetch although batches are ready.
    """
    queueing, blocked = host.fetch_queueing_fraction, host.fetch_blocked_fraction
    if not n_workers:
        return LoadingWait(queueing, blocked)
    by_workers = LoadingWait(host.workers_queueing_fraction, host.workers_blocked_fraction)
    if queueing is None or blocked is None:
        return by_workers
    queueing += blocked * (by_workers.queueing or 0.0)
    return LoadingWait(queueing, None if by_workers.blocked is None else blocked * by_workers.blocked)


def is_blocked(wait: LoadingWait, bound: float) -> bool:
    """Return whether loading mostly waits for something other than a core.

    The bound shrinks with the time spent queueing for a core, because on a busy host code queues after each wait.
    """
    queueing = wait.queueing or 0.0
    return wait.blocked is not None and wait.blocked >= max(queueing, bound * (1.0 - queueing))


def wait_share(steady: StageTimes) -> float:
    """Return data wait as a share of the time, by the device's clock if there is one."""
    if steady.device is not None:
        return steady.device.starved_share
    return phase_s(steady, "data_wait") / steady.span_s


def compute_claims(steady: StageTimes, fraction: float) -> dict[str, float]:
    """Return this fraction of compute time, by phase."""
    return {name: fraction * phase_s(steady, name) for name in COMPUTE_PHASES}


def telemetry_fact(
    metric: str,
    spread: Spread | None,
    unit: str,
    threshold: float | None = None,
    at: Literal["mean", "p50", "p95"] = "mean",
) -> Evidence | None:
    """Return the mean or a percentile of a sampled metric as evidence; None if it was not sampled."""
    if spread is None:
        return None
    return fact(metric if at == "mean" else f"{metric} ({at})", getattr(spread, at), unit, threshold, spread.n)


def changes_at(session: Session, at_s: float) -> tuple[Evidence, ...]:
    """Return the sampled metrics that changed most at a point in time, in seconds since the start of the run.

    Empty without enough samples.
    """
    found: list[tuple[float, Evidence]] = []
    for metric, was, became, n_after in _sides(session, at_s):
        is_fraction = metric.endswith("_fraction")
        change = abs(became - was) / (1.0 if is_fraction else max(abs(was), 1e-9))
        if change >= CHANGE_MIN and max(abs(was), abs(became)) > 0:
            words, unit = _described(metric)
            before = size_text(was) if "bytes" in unit else f"{was:.4g}"
            found.append((change, fact(f"{words} then: was {before}, became", became, unit, n=n_after)))
    return tuple(evidence for _, evidence in sorted(found, key=lambda one: -one[0])[:CHANGES_SHOWN])


def has_lost_cores(session: Session, at_s: float) -> bool:
    """Return whether other programs or virtual machines took cores from the training after a point in time.

    Lower CPU use of the training alone is no proof: if it waits more, it uses less CPU as well, but those cores are
    then idle.
    """
    sides = {metric: (was, became) for metric, was, became, _ in _sides(session, at_s)}
    if not {"process_cpu_cores", "cpu_busy_fraction"} <= sides.keys():
        return False
    (own_was, own_became), (busy_was, busy_became) = sides["process_cpu_cores"], sides["cpu_busy_fraction"]
    lost = own_was - own_became
    left = session.machine.usable_cores * (busy_was - busy_became)
    return lost >= LOST_CORES_MIN * own_was and lost > 0 and left <= LOST_CORES_MAX_IDLE * lost


def _sides(session: Session, at_s: float) -> Iterator[tuple[str, float, float, int]]:
    """Yield for each sampled metric: name, medians before and after a point in time, number of points after it."""
    points = session.telemetry.timeline if session.telemetry is not None else ()
    before = [point for point in points if point.step > 0 and point.start_s < at_s]
    after = [point for point in points if point.start_s >= at_s]
    for metric in sorted({name for point in points for name in point.values}):
        sides = [[point.values[metric] for point in side if metric in point.values] for side in (before, after)]
        if min(map(len, sides)) >= MIN_CHANGE_POINTS:
            yield metric, statistics.median(sides[0]), statistics.median(sides[1]), len(sides[1])


_UNITS = {
    "_fraction": "fraction",
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_mhz": "MHz",
    "_cores": "cores",
    "_c": "degrees Celsius",
    "_w": "W",
}
"""Suffix of a metric's name → its unit."""


def _described(metric: str) -> tuple[str, str]:
    """Return the name of a metric without its suffix, and its unit."""
    suffix, unit = next((item for item in _UNITS.items() if metric.endswith(item[0])), ("", ""))
    return metric.removesuffix(suffix).replace("_", " "), unit
