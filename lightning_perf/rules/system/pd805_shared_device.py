"""PD805: another process uses the same device."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding, optional_fact
from lightning_perf.rules.machine_signals import device_telemetry_of, telemetry_fact
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.wording import number_of


@rule("PD805", "shared-device")
def check(session: Session) -> Finding | None:
    device = device_telemetry_of(session)
    reason = session.missing.get(f"telemetry.devices.{device.device}.other_processes")
    n_others = required(device.other_processes, reason or f"{device.device} does not report its processes")
    if n_others < 1:
        return None
    # Not rated by time saved: the device time of other processes is not known.
    return make_finding(
        severity="medium",
        summary=(
            f"{number_of(n_others, 'other process', 'other processes')} used {device.device} during this training. "
            f"{'They share' if n_others > 1 else 'It shares'} its compute time and memory."
        ),
        evidence=(
            fact("other processes on the device", n_others, "count", n=device.n_samples),
            optional_fact("memory of other processes", device.other_memory_bytes, "bytes"),
            telemetry_fact("utilization by all processes", device.utilisation_fraction, "fraction"),
        ),
        prescriptions=fix("find the processes with nvidia-smi; use a free device", "minutes"),
        confidence="medium",
    )
