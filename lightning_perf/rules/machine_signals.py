"""What rules read from the telemetry, each with the reason to skip where it is missing."""

from __future__ import annotations

from typing import Literal, NamedTuple

from lightning_perf.records import Evidence, GpuTelemetry, HostTelemetry, Session, Spread, StageTimes

from .rule import Skip
from .signals import is_cpu_run, phase_s
from .thresholds import MIN_TELEMETRY_SAMPLES

COMPUTE_PHASES = ("forward", "backward", "optimizer")


def host_of(session: Session) -> HostTelemetry:
    """Return the host's telemetry.

    Raises:
        Skip: It was not, or too seldom.
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
        Skip: It was not, or too seldom.
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
        Skip: The driver does not tell it.
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
