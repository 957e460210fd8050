"""PD410: steady steps ask the driver for memory, and give it back, again and again."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import (
    device_reading_of,
    path_s,
    per_step,
    share_evidence,
    trace_finding,
    without,
)
from lightning_perf.rules.wording import percent

# What a few hundred steps can tell from noise.
MIN_SHARE = 0.02

DOCS = """\
## What it measures
In a profiler window, the time in `cudaMalloc`, `cudaFree` and their kin during which the device had nothing to do.
One-off calls at the start of a trace without steps are left out.

## Why it costs
The driver stops everything to hand out memory or take it back. torch keeps freed memory for the next tensor, so that
steady steps need no such call, unless it is told not to, is short of memory, or every batch has another size.

## Example
```python
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"   # or torch.cuda.empty_cache() in every step
```

## Prescription
Take out `torch.cuda.empty_cache()` and `PYTORCH_NO_CUDA_MEMORY_CACHING`; with batches of many sizes
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` or padding to few sizes; where memory is short, a smaller batch.

## When it is wrong
The first steps of a training always ask for memory: a window right at the start shows that.

## Sources
torch's notes on CUDA memory management; a ResNet-18 trace on an MI300X with 1,360 `hipFree`, 3.3 s of 3.4 s.
"""


def check(session: Session) -> Finding | None:
    """Compare the idle time of the device during these calls with the threshold."""
    reading, device = device_reading_of(session)
    allocator = reading.trace.allocator
    if allocator is None:
        raise Skip("the trace holds no calls of the driver")
    exposed_s = path_s(reading.trace, "allocator")
    if reading.share(exposed_s) < MIN_SHARE:
        return None
    gone = without(reading, "allocator")
    calls = ", ".join(per_step(reading, call.n, call.name, call.name) for call in allocator.calls[:2])
    return trace_finding(
        reading,
        summary=(
            f"The device waits {percent(reading.share(exposed_s))} of the time for the driver to allocate or free "
            f"memory{f': {calls}' if calls else ''}."
        ),
        evidence=(
            share_evidence(reading, "allocating and freeing with the device idle", exposed_s, MIN_SHARE),
            *(fact(call.name, call.total_s, "s", n=call.n) for call in allocator.calls[:3]),
        ),
        prescriptions=(
            fix(
                "keep freed memory cached: no torch.cuda.empty_cache() in the step, and expandable_segments:True",
                "minutes",
                treatment="expandable-segments",
                code=_setting(device.kind),
            ),
        ),
        low_s=gone[1] if gone else 0.0,
        high_s=min(exposed_s, gone[2]) if gone else exposed_s,
        method="timed",
        basis="at most these calls, while the device was idle",
    )


def _setting(kind: str) -> str:
    variable = "PYTORCH_HIP_ALLOC_CONF" if kind == "rocm" else "PYTORCH_CUDA_ALLOC_CONF"
    return (
        f'os.environ.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)\nos.environ["{variable}"] = "expandable_segments:True"'
    )


RULE = Rule(code="PD410", name="allocator-churn", category="memory", docs=DOCS, check=check)
