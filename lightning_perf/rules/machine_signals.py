"""What rules read from the telemetry, each with the reason to skip where it is missing."""

from __future__ import annotations

from lightning_perf.records import Evidence, GpuTelemetry, HostTelemetry, Session, Spread, StageTimes

from .rule import Skip
from .signals import is_cpu_run, phase_s

# Fewer samples than this say nothing of a run.
MIN_SAMPLES = 3

COMPUTE_PHASES = ("forward", "backward", "optimizer")


def host_of(session: Session) -> HostTelemetry:
    """The host as it was sampled.

    Raises:
        Skip: It was not, or too seldom.
    """
    host = session.telemetry.host if session.telemetry is not None else None
    if host is None:
        reason = session.missing.get("telemetry.host") or session.missing.get("telemetry")
        raise Skip(reason or "the host was not sampled")
    if host.n_samples < MIN_SAMPLES:
        raise Skip(f"{host.n_samples} samples of the host; at least {MIN_SAMPLES} are needed")
    return host


def device_of(session: Session) -> GpuTelemetry:
    """The device that this process trains on, as it was sampled.

    Raises:
        Skip: It was not, or too seldom.
    """
    devices = session.telemetry.devices if session.telemetry is not None else ()
    if not devices:
        reason = session.missing.get("telemetry.devices") or session.missing.get("telemetry")
        raise Skip(reason or ("the training runs on the CPU" if is_cpu_run(session) else "no device was sampled"))
    if devices[0].n_samples < MIN_SAMPLES:
        raise Skip(f"{devices[0].n_samples} samples of {devices[0].device}; at least {MIN_SAMPLES} are needed")
    return devices[0]


def needed(session: Session, device: GpuTelemetry, field: str) -> Spread:
    """A sampled figure of the device.

    Raises:
        Skip: The driver does not tell it.
    """
    value = getattr(device, field)
    if not isinstance(value, Spread):
        raise Skip(session.missing.get(f"telemetry.devices.{device.device}.{field}", f"{field} is not told"))
    return value


def is_blocked(blocked: float | None, queueing: float | None, bound: float) -> bool:
    """Whether code waits for something else than a core for most of the time that cores do not keep it waiting.

    On a host that is busy with other programs, code queues for a core after each wait; that is not its own doing.
    """
    return blocked is not None and blocked >= bound * (1.0 - (queueing or 0.0))


def wait_share(steady: StageTimes) -> float:
    """Share of the time lost to waiting for data: by the device's clock where there is one, else by the host's."""
    if steady.device is not None:
        return steady.device.starved_share
    return phase_s(steady, "data_wait") / steady.span_s


def compute_claims(steady: StageTimes, fraction: float) -> dict[str, float]:
    """This fraction of what computing took, by phase."""
    return {name: fraction * phase_s(steady, name) for name in COMPUTE_PHASES}


def sampled(metric: str, spread: Spread | None, unit: str, threshold: float | None = None) -> tuple[Evidence, ...]:
    """The mean of a sampled figure as evidence; nothing where it was not sampled."""
    if spread is None:
        return ()
    return (Evidence(metric=metric, value=spread.mean, unit=unit, threshold=threshold, n=spread.n),)


def told(metric: str, value: float | None, unit: str, threshold: float | None = None) -> tuple[Evidence, ...]:
    """A figure as evidence; nothing where it is not known."""
    return () if value is None else (Evidence(metric=metric, value=value, unit=unit, threshold=threshold),)
