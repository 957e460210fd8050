"""PD319: a CPU that multiplies denormal numbers, many times slower than others."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, OperatorProfile, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.model_signals import ceilings_of, counted
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import computing_s, is_cpu_run, steady_of
from lightning_perf.rules.wording import percent

CODE = "PD319"
NAME = "denormal-arithmetic"
CATEGORY = "compute"

# pytorch issue 19651 tells of 3.38 s for 0.083 s, 40 times; small products miss their ceiling by less than 5 times.
MIN_SLOWDOWN = 5.0
# Enough for every vector of 16 numbers to hold one, on average.
MIN_DENORMAL_FRACTION = 1 / 16

DOCS = """\
## What it measures
In the step whose arithmetic was counted, on a CPU: how far matrix products and convolutions in float32 stay below the
ceiling measured on this CPU, and what part of their inputs is denormal, too small for a normal float (below 1.2e-38).

## Why it costs
Many processors compute with denormal numbers in microcode, tens of times slower than with others. They come from
weights and activations that decay towards zero without reaching it.

## Example
```python
loss = output.square().mean() * 1e-30  # gradients, momenta and then weights of 1e-39
```

## Prescription
`torch.set_flush_denormal(True)`, first of all: such numbers are then taken as zero.

## When it is wrong
Products may be slow for other reasons, and newer processors mind denormal numbers little: a trial tells. Numbers that
small have no effect on a training in float32 but in sums of many.

## Sources
pytorch issue 19651 (a convolution of 3.38 s takes 0.083 s with denormals flushed); torch's documentation of
`set_flush_denormal`.
"""


def check(session: Session) -> Finding | None:
    """Charges products that are both slow and fed with denormal numbers with the time above their ceiling."""
    if not is_cpu_run(session):
        return None
    suspects = [operator for operator in counted(session).operators if _is_fed_denormals(operator)]
    if not suspects:
        return None
    ceiling = ceilings_of(session).matmul_flops_per_s.get("fp32")
    if not ceiling:
        raise Skip("this CPU's speed in fp32 was not measured")
    steady = steady_of(session)
    slow = [o for o in suspects if (o.total_s or 0.0) >= MIN_SLOWDOWN * o.flops / ceiling]
    lost_s = sum((o.total_s or 0.0) - o.flops / ceiling for o in slow)
    if not slow or lost_s <= 0:
        return None
    spent_s = sum(o.total_s or 0.0 for o in slow)
    worst = max(slow, key=lambda o: o.total_s or 0.0)
    compute_s = computing_s(session, steady, "forward", "backward")
    high_s = min(lost_s * steady.n_steps, compute_s)
    part = high_s / compute_s if compute_s > 0 else 0.0
    slowdown = spent_s * ceiling / max(1, sum(o.flops for o in slow))
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(worst.denormal_fraction or 0.0)} of the numbers that {worst.name} multiplies are denormal. "
            f"These products take {slowdown:.0f} times what this CPU needs at its ceiling."
        ),
        evidence=(
            Evidence(
                metric=f"denormal numbers into {worst.name}",
                value=worst.denormal_fraction or 0.0,
                unit="fraction",
                threshold=MIN_DENORMAL_FRACTION,
                n=worst.calls,
            ),
            Evidence(metric="slower than the ceiling", value=slowdown, unit="ratio", threshold=MIN_SLOWDOWN),
            Evidence(metric="ceiling of this CPU in fp32", value=ceiling, unit="FLOP/s"),
        ),
        prescriptions=(
            Prescription(
                treatment="flush-denormal",
                summary="take denormal numbers as zero",
                safety="numerics",
                effort="one line",
                code="torch.set_flush_denormal(True)  # first of all",
            ),
        ),
        claims={name: part * computing_s(session, steady, name) for name in ("forward", "backward")},
        low_s=0.0,
        basis="at most these products at the CPU's ceiling",
        confidence="medium",
    )


def _is_fed_denormals(operator: OperatorProfile) -> bool:
    return (
        operator.flops > 0
        and operator.dtype == "float32"
        and operator.total_s is not None
        and (operator.denormal_fraction or 0.0) >= MIN_DENORMAL_FRACTION
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
