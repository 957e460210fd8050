"""What rules read from the telemetry, each with the reason to skip where it is missing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Literal, NamedTuple

from lightning_perf.records import Evidence, GpuTelemetry, HostTelemetry, Session, Spread, StageTimes

from .rule import Skip
from .signals import is_cpu_run, phase_s
from .thresholds import (
    CHANGE_MIN,
    CHANGES_SHOWN,
    LOST_CORES_MAX_IDLE,
    LOST_CORES_MIN,
    MIN_CHANGE_POINTS,
    MIN_TELEMETRY_SAMPLES,
)

COMPUTE_PHASES = ("forward", "backward", "optimizer")


def host_of(session: Session) -> HostTelemetry:
    """Return the host's telemetry.

    Raises:
        Skip: It was not sampled, or too rarely.
    """
    host = session.telemetry.host if session.telemetry is not None else None
    if host is None:
        reason = session.missing.get("telemetry.host") or session.missing.get("telemetry")
        raise Skip(reason or "the host was not sampled")
    if host.n_samples < MIN_TELEMETRY_SAMPLES:
        raise Skip(f"{host.n_samples} samples of the host; at least {MIN_TELEMETRY_SAMPLES} are needed")
    return host


def device_telemetry_of(session: Session) -> GpuTelemetry:
    """Return the telemetry of the device that this process trains on.

    Raises:
        Skip: It was not sampled, or too rarely.
    """
    devices = session.telemetry.devices if session.telemetry is not None else ()
    if not devices:
        reason = session.missing.get("telemetry.devices") or session.missing.get("telemetry")
        raise Skip(reason or ("the training runs on the CPU" if is_cpu_run(session) else "no device was sampled"))
    if devices[0].n_samples < MIN_TELEMETRY_SAMPLES:
        raise Skip(
            f"{devices[0].n_samples} samples of {devices[0].device}; at least {MIN_TELEMETRY_SAMPLES} are needed"
        )
    return devices[0]


def needed(session: Session, device: GpuTelemetry, field: str) -> Spread:
    """Return a sampled figure of the device.

    Raises:
        Skip: The driver does not report it.
    """
    value = getattr(device, field)
    if not isinstance(value, Spread):
        raise Skip(session.missing.get(f"telemetry.devices.{device.device}.{field}", f"{field} is not told"))
    return value


class LoadingWait(NamedTuple):
    """What the wait for data is made of, as fractions of it; the rest is computing.

    Attributes:
        cores: Ready to run, but without a core. None when not told.
        elsewhere: Neither running nor ready to run: storage, a network, a lock. None when not told.
    """

    cores: float | None
    elsewhere: float | None


def loading_wait(host: HostTelemetry, n_workers: int) -> LoadingWait:
    """Return what the wait for data is made of, from the training thread to the workers.

    A thread that asks for a batch runs, queues for a core, or is blocked. Without workers that is the loading itself.
    With workers only a blocked thread waits for them, and what they do then is what it waits for: workers that have
    run ahead are idle while the training thread, in the midst of its fetch, queues for the core that others hold.

    Args:
        host: The host as it was sampled.
        n_workers: Of the loader.
    """
    queueing, blocked = host.fetch_queueing_fraction, host.fetch_blocked_fraction
    if not n_workers:
        return LoadingWait(queueing, blocked)
    by_workers = LoadingWait(host.workers_queueing_fraction, host.workers_blocked_fraction)
    if queueing is None or blocked is None:
        return by_workers
    cores = queueing + blocked * (by_workers.cores or 0.0)
    return LoadingWait(cores, None if by_workers.elsewhere is None else blocked * by_workers.elsewhere)


def is_blocked(wait: LoadingWait, bound: float) -> bool:
    """Return whether loading mostly waits for something other than a core.

    On a host that is busy with other programs, code queues for a core after each wait; that is not its own doing.
    """
    cores = wait.cores or 0.0
    return wait.elsewhere is not None and wait.elsewhere >= max(cores, bound * (1.0 - cores))


def wait_share(steady: StageTimes) -> float:
    """Return the share of the time spent waiting for data, by the device's clock if there is one."""
    if steady.device is not None:
        return steady.device.starved_share
    return phase_s(steady, "data_wait") / steady.span_s


def compute_claims(steady: StageTimes, fraction: float) -> dict[str, float]:
    """Return this fraction of the computing time, by phase."""
    return {name: fraction * phase_s(steady, name) for name in COMPUTE_PHASES}


def sampled(
    metric: str,
    spread: Spread | None,
    unit: str,
    threshold: float | None = None,
    at: Literal["mean", "p50", "p95"] = "mean",
) -> tuple[Evidence, ...]:
    """Return the mean or a percentile of a sampled figure as evidence; nothing where it was not sampled."""
    if spread is None:
        return ()
    name = metric if at == "mean" else f"{metric} ({at})"
    return (Evidence(metric=name, value=getattr(spread, at), unit=unit, threshold=threshold, n=spread.n),)


def told(
    metric: str, value: float | None, unit: str, threshold: float | None = None, n: int | None = None
) -> tuple[Evidence, ...]:
    """Return a figure as evidence; nothing where it is not known."""
    return () if value is None else (Evidence(metric=metric, value=value, unit=unit, threshold=threshold, n=n),)


def changes_at(session: Session, at_s: float) -> tuple[Evidence, ...]:
    """Return the sampled figures that changed most at a moment, as evidence; empty without enough samples around it.

    Args:
        session: With telemetry.
        at_s: Seconds since the start of the run.
    """
    found: list[tuple[float, Evidence]] = []
    for metric, was, became, n_after in _sides(session, at_s):
        is_fraction = metric.endswith("_fraction")
        change = abs(became - was) / (1.0 if is_fraction else max(abs(was), 1e-9))
        if change >= CHANGE_MIN and max(abs(was), abs(became)) > 0:
            found.append((change, Evidence(metric=f"{_words(metric)} then: was {was:.4g}, became", value=became,
                                           unit=_unit(metric), n=n_after)))  # fmt: skip
    return tuple(evidence for _, evidence in sorted(found, key=lambda one: -one[0])[:CHANGES_SHOWN])


def has_lost_cores(session: Session, at_s: float) -> bool:
    """Return whether other programs or virtual machines took cores from the training from a moment on.

    Less of the cores alone does not say so: a training that begins to wait uses less as well, but then nobody uses
    what it leaves.
    """
    sides = {metric: (was, became) for metric, was, became, _ in _sides(session, at_s)}
    if not {"process_cpu_cores", "cpu_busy_fraction"} <= sides.keys():
        return False
    (own_was, own_became), (busy_was, busy_became) = sides["process_cpu_cores"], sides["cpu_busy_fraction"]
    lost = own_was - own_became
    left = session.machine.usable_cores * (busy_was - busy_became)
    return lost >= LOST_CORES_MIN * own_was and lost > 0 and left <= LOST_CORES_MAX_IDLE * lost


def _sides(session: Session, at_s: float) -> Iterator[tuple[str, float, float, int]]:
    """Yield each sampled figure: name, medians before and after a moment, number of points after it."""
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
"""How a figure's name ends → its unit."""


def _words(metric: str) -> str:
    suffix = next((suffix for suffix in _UNITS if metric.endswith(suffix)), "")
    return metric.removesuffix(suffix).replace("_", " ")


def _unit(metric: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if metric.endswith(suffix)), "")
