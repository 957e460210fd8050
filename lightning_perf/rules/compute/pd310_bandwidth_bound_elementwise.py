"""PD310: most of the device's work only moves numbers through memory."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Session, TraceRecord
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.trace_signals import (
    ELEMENTWISE_KINDS,
    compile_prescription,
    device_reading_of,
    device_savings,
    is_worth_saying,
    kind_s,
    share_evidence,
    trace_finding,
    work_s,
    work_share,
)
from lightning_perf.rules.wording import percent

CODE = "PD310"
NAME = "bandwidth-bound-elementwise"
CATEGORY = "compute"

MIN_SHARE = 0.40
# A chain of n elementwise operators fused into one reads and writes once instead of n times: the sources give 2 to 4x.
HIGH_SPEED_UP = 3.0

DOCS = """\
## What it measures
In a profiler window, the share of elementwise, normalisation, reduction and copy kernels in the time of all kernels
but collectives. They do less than one operation for each byte, so memory decides their time, not arithmetic.

## Why it costs
Each such kernel reads its whole input and writes its whole output. Fused, a chain of them reads and writes once.

## Example
```python
y = F.gelu(x + bias) * gate + residual  # four passes through memory
```

## Prescription
`torch.compile`, which fuses such chains; fused layers and optimizers; 16-bit activations, which halve the bytes.

## When it is wrong
A single elementwise kernel at the memory's speed has nothing to be fused with. Models that are compiled already show
their fused kernels here.

## Sources
The roofline case study (0.1-0.5 operations a byte for elementwise work; 2-4x by fusion); the memory-bound column of
the bottleneck table.
"""


def check(session: Session) -> Finding | None:
    """Compares the share of kernels that memory decides with the threshold."""
    reading, _ = device_reading_of(session)
    trace = reading.trace
    spent_s = kind_s(trace, *ELEMENTWISE_KINDS)
    if trace.attention is not None:  # the softmax over scores is the attention's, PD309
        spent_s -= min(kind_s(trace, "normalization"), trace.attention.device_s)
    everything_s = work_s(trace)
    if everything_s <= 0 or spent_s / everything_s < MIN_SHARE:
        return None
    low_s, high_s = device_savings(reading, 0.0, spent_s * (1 - 1 / HIGH_SPEED_UP))
    if not is_worth_saying(reading, high_s):
        return None
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(spent_s / everything_s)} of the kernels' time only moves numbers through memory. "
            f"{_kinds(trace)}."
        ),
        evidence=(
            Evidence(
                metric="elementwise, normalisation, reduction and copy kernels in the kernels' time",
                value=spent_s / everything_s,
                unit="fraction",
                threshold=MIN_SHARE,
                n=trace.n_kernels,
            ),
            share_evidence(reading, "these kernels", spent_s),
        ),
        prescriptions=(compile_prescription(": it fuses chains of them"),),
        low_s=low_s,
        high_s=high_s,
        basis=f"these kernels at most {HIGH_SPEED_UP:g}x faster when fused",
        confidence="medium",
    )


def _kinds(trace: TraceRecord) -> str:
    parts = [f"{kind} {percent(share)}" for kind in ELEMENTWISE_KINDS if (share := work_share(trace, kind)) >= 0.01]
    return f"By kind: {', '.join(parts)}"


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
