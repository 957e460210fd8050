"""PD809: the CPU runs below its base clock while training needs it."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, optional_fact, timed_finding
from lightning_perf.rules.machine_signals import compute_claims, host_telemetry_of, telemetry_fact, wait_share
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.signals import is_cpu_run, phase_s, steady_of
from lightning_perf.rules.thresholds import CPU_CLOCK_MIN_PART, WAIT_MIN_SHARE


@rule("PD809", "cpu-clock-held-back")
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    host = host_telemetry_of(session)
    clock = host.cpu_mhz
    full_mhz = host.base_cpu_mhz or host.max_cpu_mhz
    if clock is None or not full_mhz:
        raise Skip(session.missing.get("telemetry.host.cpu_mhz", "the clock of the CPU is not known"))
    waits = wait_share(steady)
    if not is_cpu_run(session) and waits < WAIT_MIN_SHARE:
        return None  # the device limits the speed
    is_governed = host.cpu_governor not in (None, "performance")
    # Without a base clock only the maximum is known, which few cores reach at the same time.
    allowed = 1.0 if host.base_cpu_mhz else CPU_CLOCK_MIN_PART
    if clock.p50 >= allowed * full_mhz:
        return None
    level = "the base clock" if host.base_cpu_mhz else "half of the maximum clock"
    wanted = f"instead of {'' if host.base_cpu_mhz else 'up to '}{full_mhz:.0f} MHz"
    lost = 1.0 - clock.p50 / (allowed * full_mhz)
    phases = compute_claims(steady, lost) if is_cpu_run(session) else {}
    return timed_finding(
        steady,
        summary=(
            f"The CPU ran at {clock.p50:.0f} MHz (p50) {wanted} under "
            f"load" + (f"; its governor is {host.cpu_governor}." if is_governed else ".")
        ),
        evidence=(
            telemetry_fact("clock of the training thread's core", clock, "MHz", allowed * full_mhz, "p50"),
            optional_fact("base clock", host.base_cpu_mhz, "MHz"),
            optional_fact("maximum clock", host.max_cpu_mhz, "MHz"),
            fact("governor", host.cpu_governor),
        ),
        prescriptions=fix(
            "set the CPU governor to performance" if is_governed else "check for thermal throttling or a power limit",
            "one line" if is_governed else "hours",
            code="sudo cpupower frequency-set -g performance" if is_governed else "",
        ),
        claims={**phases, "data_wait": lost * phase_s(steady, "data_wait")},
        basis=f"at most compute at {level}",
        confidence="medium" if is_governed else "low",
        method="modeled",
    )
