"""PD407: the allocator flushed its cache to satisfy requests."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.memory_signals import EXPANDABLE_SEGMENTS, device_memory_of, smaller_batch
from lightning_perf.rules.parts import fact, unsigned_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.wording import called

DOCS = """\
## What it measures
How often torch's allocator gave all its cached blocks back to the driver and asked again.

## Why it costs
Each flush waits for the device and makes the following allocations go to the driver, which takes milliseconds.

## Example
```python
Trainer(precision=32)  # at 98 % of the device, shapes differ from batch to batch
```

## Prescription
A smaller batch with more accumulation, or expandable segments where memory is in pieces.

## When it is wrong
A few in the first steps, while kernels are tried out (cudnn.benchmark), cost little.

## Sources
torch's `memory_stats` (num_alloc_retries) and its notes on CUDA memory management.
"""


def check(session: Session) -> Finding | None:
    """Check the allocator's count of retries."""
    device = device_memory_of(session)
    if device.alloc_retries is None:
        raise Skip(f"the allocator of {device.device} does not count its retries")
    if device.alloc_retries == 0:
        return None
    headroom = session.memory.headroom
    n_samples = headroom.n_samples if headroom is not None else None
    return unsigned_finding(
        severity="medium",
        summary=(
            f"The allocator of {device.device} flushed its cache {called(device.alloc_retries)} to allocate memory, "
            f"{'and' if device.alloc_retries == 1 else 'each time'} waiting for the device."
        ),
        evidence=(
            fact("allocation retries", device.alloc_retries, "count", 0),
            fact("peak of reserved memory", device.peak_reserved_bytes, "bytes"),
        ),
        prescriptions=(smaller_batch(session, n_samples), EXPANDABLE_SEGMENTS),
    )


RULE = Rule(code="PD407", name="allocation-retries", category="memory", docs=DOCS, check=check)
