"""PD808: the device's utilization is low or uneven, and no other rule explains it."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding
from lightning_perf.rules.machine_signals import device_telemetry_of
from lightning_perf.rules.rule import Skip, required, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import UTILIZATION_LOW_P95, UTILIZATION_UNEVEN_P5
from lightning_perf.rules.trace_reading import shows_device
from lightning_perf.rules.wording import percent


@rule("PD808", "low-utilisation-unexplained", only_unexplained=True)
def check(session: Session) -> Finding | None:
    steady_of(session)
    if shows_device(session):
        raise Skip("a profiler window shows when the device is idle")
    device = device_telemetry_of(session)
    reason = session.missing.get(f"telemetry.devices.{device.device}.utilisation_fraction")
    use = required(device.utilisation_fraction, reason or f"{device.device} does not report its utilization")
    is_low = use.p95 < UTILIZATION_LOW_P95
    is_uneven = not is_low and use.p5 < UTILIZATION_UNEVEN_P5
    if not is_low and not is_uneven:
        return None
    if is_low:
        what = f"{device.device} was at most {percent(use.p95)} utilized (p95)"
    else:
        what = f"{device.device} was {percent(use.p5)} to {percent(use.p95)} utilized (p5 to p95)"
    # Not rated by time saved: without a cause no gain is known.
    return make_finding(
        severity="low",
        summary=f"{what}, and no other rule explains it.",
        evidence=(
            fact("utilization, p95", use.p95, "fraction", UTILIZATION_LOW_P95, use.n),
            fact("utilization, p5", use.p5, "fraction", UTILIZATION_UNEVEN_P5, use.n),
        ),
        prescriptions=fix(
            "record a profiler window, which shows when the device is idle",
            "one line",
            code="PerfDoctor(schedule=(5, 2, 3, 1))",
        ),
        confidence="low",
    )
