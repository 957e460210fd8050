"""PD802: the power limit lowers the device's clock."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding, optional_fact
from lightning_perf.rules.machine_signals import device_telemetry_of, telemetry_fact
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.thresholds import POWER_CAPPED_MIN_FRACTION
from lightning_perf.rules.wording import percent

POWER_REASONS = ("sw_power_cap", "hw_power_brake")


@rule("PD802", "power-capped")
def check(session: Session) -> Finding | None:
    device = device_telemetry_of(session)
    missing = session.missing.get(f"telemetry.devices.{device.device}.throttle_fractions")
    fractions = required(device.throttle_fractions, missing or f"{device.device} does not report throttling reasons")
    capped = min(1.0, sum(fractions.get(reason, 0.0) for reason in POWER_REASONS))
    if capped < POWER_CAPPED_MIN_FRACTION:
        return None
    limit_w, default_w = device.power_limit_w, device.default_power_limit_w
    is_lowered = limit_w is not None and default_w is not None and limit_w < default_w
    # At its default limit a device is well used and nothing can be gained, hence info.
    return make_finding(
        severity="low" if is_lowered else "info",
        summary=(
            f"{device.device} was at its power limit {percent(capped)} of the time."
            + (f" The limit is {limit_w:.0f} W, its default {default_w:.0f} W." if is_lowered else "")
        ),
        evidence=(
            fact("time at the power limit", capped, "fraction", POWER_CAPPED_MIN_FRACTION, device.n_samples),
            telemetry_fact("power", device.power_w, "W", limit_w),
            optional_fact("default limit", default_w, "W"),
            telemetry_fact("clock", device.sm_clock_mhz, "MHz"),
        ),
        prescriptions=fix(
            f"raise the power limit to {default_w:.0f} W, if power supply and cooling allow",
            "one line",
            code=f"sudo nvidia-smi -pl {default_w:.0f}",
        )
        if is_lowered
        else (),
    )
