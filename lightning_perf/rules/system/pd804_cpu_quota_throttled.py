"""PD804: the CPU quota of the container throttles training."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, optional_fact, timed_finding
from lightning_perf.rules.machine_signals import host_telemetry_of
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.thresholds import THROTTLED_MIN_FRACTION
from lightning_perf.rules.wording import percent


@rule("PD804", "cpu-quota-throttled")
def check(session: Session) -> Finding | None:
    steady = steady_of(session)
    host = host_telemetry_of(session)
    if not host.throttle_periods:
        return None  # no quota
    share = min(1.0, (host.throttled_periods or 0) / host.throttle_periods)
    if share < THROTTLED_MIN_FRACTION:
        return None
    quota = session.machine.cpu_quota_cores
    stopped = share if host.throttled_s is None else min(share, host.throttled_s / steady.span_s)
    return timed_finding(
        steady,
        summary=(
            f"The CPU quota{f' of {quota:g} cores' if quota else ''} is exhausted in {percent(share)} of its periods; "
            "training then stops until the next period."
        ),
        evidence=(
            fact(
                "periods in which the quota was exhausted",
                share,
                "fraction",
                THROTTLED_MIN_FRACTION,
                host.throttle_periods,
            ),
            optional_fact("time throttled, summed over cores", host.throttled_s, "s"),
            optional_fact("quota", quota, "cores"),
        ),
        prescriptions=fix(
            "raise the quota (Kubernetes: limits.cpu), or use no more workers and threads than it allows", "minutes"
        ),
        claims={name: stopped * phase.total_s for name, phase in steady.phases.items()},
        basis="at most the throttled time",
        confidence="medium",
    )
