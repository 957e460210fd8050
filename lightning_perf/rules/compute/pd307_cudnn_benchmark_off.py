"""PD307: convolutions of one shape, and cuDNN is not asked to try its algorithms."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import (
    device_reading_of,
    device_savings,
    is_worth_saying,
    kind_s,
    share_evidence,
    trace_finding,
    work_share,
)
from lightning_perf.rules.wording import percent

CODE = "PD307"
NAME = "cudnn-benchmark-off"
CATEGORY = "compute"

MIN_CONVOLUTION_SHARE = 0.30
# Reports of what benchmarking gains lie between nothing and about 1.5x for the convolutions.
HIGH_SPEED_UP = 1.5

DOCS = """\
## What it measures
In a profiler window with recorded shapes: convolutions take at least 30 % of the kernels' time, their first input has
one shape, and `torch.backends.cudnn.benchmark` is off.

## Why it costs
cuDNN has several algorithms for each convolution. It chooses by a rule of thumb unless it may measure them once for
each shape.

## Example
```python
Trainer(benchmark=False)  # images of one size
```

## Prescription
`Trainer(benchmark=True)`.

## When it is wrong
Inputs of many shapes are measured again each time, which costs more than it gains. Algorithms may differ from run to
run, and take more memory.

## Sources
torch's performance tuning guide; Lightning's `benchmark` flag.
"""


def check(session: Session) -> Finding | None:
    """Compares the setting with what the convolutions look like."""
    reading, device = device_reading_of(session)
    is_on = session.settings.torch.is_cudnn_benchmark_on
    if is_on is None:
        raise Skip("a trace does not tell whether cudnn.benchmark is on")
    if is_on or device.kind not in ("cuda", "rocm") or session.settings.torch.is_deterministic:
        return None
    convolutions = reading.trace.convolutions
    share = work_share(reading.trace, "convolution")
    if share < MIN_CONVOLUTION_SHARE or convolutions is None:
        return None
    if convolutions.n_input_shapes is None:
        raise Skip("the profiler window recorded no shapes")
    if convolutions.n_input_shapes > 1:
        return None
    spent_s = kind_s(reading.trace, "convolution")
    low_s, high_s = device_savings(reading, 0.0, spent_s * (1 - 1 / HIGH_SPEED_UP))
    if not is_worth_saying(reading, high_s):
        return None
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(share)} of the kernels' time is convolutions of one input shape, and cuDNN may not try its "
            "algorithms."
        ),
        evidence=(
            share_evidence(reading, "convolutions", spent_s),
            Evidence(
                metric="convolutions in the kernels' time",
                value=share,
                unit="fraction",
                threshold=MIN_CONVOLUTION_SHARE,
                n=convolutions.n,
            ),
            Evidence(metric="cudnn.benchmark", value=False),
        ),
        prescriptions=(
            Prescription(
                treatment="cudnn-benchmark",
                summary="set benchmark=True",
                safety="numerics",
                effort="one line",
                trainer_flags={"benchmark": True},
                code="Trainer(..., benchmark=True)",
            ),
        ),
        low_s=low_s,
        high_s=high_s,
        basis=f"convolutions at most {HIGH_SPEED_UP:g}x faster",
        confidence="low",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
