"""PD804: the container's CPU quota stops the training for part of each period."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.machine_signals import host_of, told
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.wording import percent

# Below a twentieth of the periods it cannot cost what is worth looking at.
MIN_THROTTLED_FRACTION = 0.05

DOCS = """\
## What it measures
In how many periods of its CPU quota (100 ms each) the cgroup around this process was stopped, while the training ran.

## Why it costs
A quota of 4 cores lets 8 busy threads run for half of each period. For the rest all of them stand still, the training
thread included.

## Example
```yaml
resources:
  limits: {cpu: 2}  # and num_workers=8 in the script
```

## Prescription
A larger quota, or as many workers and threads as it has cores.

## When it is wrong
The time stopped is bounded from above only: a period may be cut by a little or by most of it, and the device may have
had work meanwhile.

## Sources
Linux kernel documentation, CFS bandwidth control (`cpu.stat`).
"""


def check(session: Session) -> Finding | None:
    """Compare the throttled periods of the cgroup with the threshold."""
    steady = steady_of(session)
    host = host_of(session)
    if not host.throttle_periods:
        return None  # no quota
    share = min(1.0, (host.throttled_periods or 0) / host.throttle_periods)
    if share < MIN_THROTTLED_FRACTION:
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
                MIN_THROTTLED_FRACTION,
                host.throttle_periods,
            ),
            *told("time throttled, summed over cores", host.throttled_s, "s"),
            *told("quota", quota, "cores"),
        ),
        prescriptions=(
            fix(
                "raise the quota (Kubernetes: limits.cpu), or use no more workers and threads than it allows",
                "minutes",
            ),
        ),
        claims={name: stopped * phase.total_s for name, phase in steady.phases.items()},
        low_s=0.0,
        method="timed",
        basis="at most the throttled time",
        confidence="medium",
    )


RULE = Rule(code="PD804", name="cpu-quota-throttled", category="system", docs=DOCS, check=check)
