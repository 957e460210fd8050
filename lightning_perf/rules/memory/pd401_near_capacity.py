"""PD401: peak memory is close to what the device has."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.memory_signals import (
    CHECKPOINTING,
    FULL_FRACTION,
    NEAR_CAPACITY_FRACTION,
    bf16_of,
    capacity_fraction,
    device_memory_of,
    smaller_batch,
)
from lightning_perf.rules.parts import fact, unsigned_finding
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.wording import percent

DOCS = """\
## What it measures
The peak of reserved memory over the device's memory.

## Why it costs
A batch a little longer, or a validation with other shapes, ends the run; before that the allocator flushes its cache
to satisfy requests, and each flush waits for the device.

## Example
```python
Trainer(accumulate_grad_batches=1)  # one large batch a step
```

## Prescription
Activation checkpointing, bf16, or a smaller batch with more accumulation.

## When it is wrong
A cache that filled up over time looks like need: allocated memory far below the reserved one is fragmentation
(PD404). A run that is meant to fill the device and has fixed shapes can stay there.

## Sources
TraceML's memory states (92 % and 97 % of the device).
"""


def check(session: Session) -> Finding | None:
    """Compare the peak with the capacity."""
    device = device_memory_of(session)
    fraction = capacity_fraction(device)
    if fraction < NEAR_CAPACITY_FRACTION:
        return None
    headroom = session.memory.headroom
    n_samples = headroom.n_samples if headroom is not None else None
    return unsigned_finding(
        severity="high" if fraction >= FULL_FRACTION else "medium",
        summary=(
            f"{device.device} uses {percent(fraction)} of its memory at its peak. "
            "A slightly larger batch would end the run."
        ),
        evidence=(
            fact("peak of reserved memory ÷ memory of the device", fraction, "fraction", NEAR_CAPACITY_FRACTION),
            fact("peak of allocated memory", device.peak_allocated_bytes, "bytes"),
        ),
        prescriptions=(CHECKPOINTING, *bf16_of(session), smaller_batch(session, n_samples)),
    )


RULE = Rule(code="PD401", name="near-capacity", category="memory", docs=DOCS, check=check)
