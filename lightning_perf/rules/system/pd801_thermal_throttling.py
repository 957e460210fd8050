"""PD801: the device lowers its clock because it is hot."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fix, make_finding, optional_fact, timed_finding
from lightning_perf.rules.machine_signals import compute_claims, device_telemetry_of, telemetry_fact
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import CLOCK_MIN_LOSS, HOT_C, THROTTLED_MIN_FRACTION
from lightning_perf.rules.wording import percent

THERMAL_REASONS = ("sw_thermal", "hw_thermal")


@rule("PD801", "thermal-throttling")
def check(session: Session) -> Finding | None:
    """Compare the time of thermal throttling with the threshold; if not reported, check temperature and clock."""
    steady = steady_of(session)
    device = device_telemetry_of(session)
    reasons = device.throttle_fractions
    hot, clock = device.temperature_c, device.sm_clock_mhz
    if reasons is None and (hot is None or clock is None or not device.max_sm_clock_mhz):
        raise Skip(f"{device.device} reports neither throttling reasons nor its temperature and clock")
    throttled = min(1.0, sum((reasons or {}).get(reason, 0.0) for reason in THERMAL_REASONS))
    lost = None if clock is None or not device.max_sm_clock_mhz else 1.0 - clock.mean / device.max_sm_clock_mhz
    is_hot_and_slow = (
        reasons is None and hot is not None and hot.p95 >= HOT_C and lost is not None and lost >= CLOCK_MIN_LOSS
    )
    if throttled < THROTTLED_MIN_FRACTION and not is_hot_and_slow:
        return None
    heat = f"at {hot.p95:.0f} °C (p95)" if hot is not None else ""
    slow = f"its clock was {percent(lost)} below its highest" if lost is not None else ""
    if is_hot_and_slow:
        summary = f"{device.device} ran {heat}; {slow}. The driver gives no reason."
    else:
        summary = f"{device.device} was thermally throttled {percent(throttled)} of the time"
        summary += (f", {heat}" if heat else "") + (f"; {slow}" if slow else "") + "."
    evidence = (
        optional_fact(
            "time thermally throttled",
            throttled if reasons is not None else None,
            "fraction",
            THROTTLED_MIN_FRACTION,
            device.n_samples,
        ),
        telemetry_fact("temperature", hot, "°C", HOT_C, "p95"),
        telemetry_fact("clock", clock, "MHz"),
        optional_fact("highest clock", device.max_sm_clock_mhz, "MHz"),
    )
    if lost is None:  # the cost is not known
        return make_finding(severity="low", summary=summary, evidence=evidence, prescriptions=_COOLER)
    return timed_finding(
        steady,
        summary=summary,
        evidence=evidence,
        prescriptions=_COOLER,
        claims=compute_claims(steady, max(0.0, lost if is_hot_and_slow else min(lost, throttled))),
        basis=("at most compute at the highest clock" + ("" if is_hot_and_slow else " while throttled")),
        confidence="medium" if is_hot_and_slow else "high",
        method="modeled",
    )


_COOLER = fix("improve cooling (dust, fans, air flow), or lower the power limit a little", "hours")
