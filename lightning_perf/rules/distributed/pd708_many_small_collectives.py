"""PD708: gradients are exchanged one by one instead of in buckets."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rank_signals import MIN_SMALL_PER_STEP, small_part
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import is_blind, path_s, reading_of, share_evidence, trace_finding, without
from lightning_perf.rules.wording import duration, percent

MIN_SHARE = 0.02

DOCS = """\
## What it measures
In a profiler window, more than 50 collectives a step of less than 1 MiB each (where sizes are not recorded, of less
than 100 us each), and the time in which they ran and no other kernel did.

## Why it costs
Each collective has to be launched and agreed on by all ranks, whatever its size. One per parameter pays that hundreds
of times a step; in buckets of 25 MiB it is paid a few times, and overlaps with backward.

## Example
```python
for p in model.parameters():
    dist.all_reduce(p.grad)  # 404 times a step
```

## Prescription
Leave it to DDP, whose buckets (`bucket_cap_mb=25`) do this; or flatten the gradients before one `all_reduce`.

## When it is wrong
Many small collectives that nothing waits for cost nothing: only what is not hidden is charged.

## Sources
torch's notes on DistributedDataParallel (gradient buckets); a trace of 404 unbucketed all_reduce a step, none of it
hidden.
"""


def check(session: Session) -> Finding | None:
    """Compare the time of small collectives without another kernel with the threshold."""
    reading = reading_of(session)
    if is_blind(reading.trace):
        raise Skip(reading.trace.missing.get("device", "the trace does not show what the device did"))
    communication = reading.trace.communication
    if communication is None or not reading.trace.steps:
        return None
    part = small_part(reading)
    small = part * communication.n_per_step
    exposed_s = part * path_s(reading.trace, "communication")
    if not part or reading.share(exposed_s) < MIN_SHARE:
        return None
    gone = without(reading, "communication")
    return trace_finding(
        reading,
        summary=(
            f"{small:.0f} small collectives per step (median {duration(communication.median_s or 0.0)}) take "
            f"{percent(reading.share(exposed_s))} of the time without a kernel beside them."
        ),
        evidence=(
            fact("small collectives per step", small, "count", MIN_SMALL_PER_STEP),
            share_evidence(reading, "small collectives while no other kernel ran", exposed_s, MIN_SHARE),
        ),
        prescriptions=(
            fix(
                "exchange gradients in buckets, as DDP does (bucket_cap_mb=25)",
                "minutes",
                code="Trainer(..., strategy=DDPStrategy(bucket_cap_mb=25))",
            ),
        ),
        low_s=0.0,
        high_s=min(exposed_s, gone[2]) if gone else exposed_s,
        method="timed",
        basis="at most these collectives; their bytes are still exchanged",
        confidence="high" if communication.small_per_step is not None else "medium",
    )


RULE = Rule(code="PD708", name="many-small-collectives", category="distributed", docs=DOCS, check=check)
