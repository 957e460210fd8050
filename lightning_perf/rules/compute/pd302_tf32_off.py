"""PD302: 32-bit matrix products that could run on Tensor Cores as TF32."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import (
    device_reading_of,
    device_savings,
    is_worth_saying,
    matrix_units,
    share_evidence,
    trace_finding,
)
from lightning_perf.rules.wording import percent

CODE = "PD302"
NAME = "tf32-off"
CATEGORY = "compute"

# As for PD202: from 5 % on it decides something.
MIN_SHARE = 0.05
# An A100's datasheet: 156 TFLOP/s in TF32 against 19.5 in fp32. At least what mixed precision gives at the low end.
LOW_SPEED_UP = 1.5
HIGH_SPEED_UP = 8.0

DOCS = """\
## What it measures
In a profiler window on a device with TF32 (NVIDIA Ampere and newer), the time in matrix kernels whose names say plain
32 bit, as a share of the time.

## Why it costs
TF32 rounds the inputs of a product to 10 bits of mantissa and multiplies them on Tensor Cores, up to eight times as
fast. torch leaves it off for matrix products unless asked.

## Example
```python
# nothing set: torch.get_float32_matmul_precision() == "highest"
```

## Prescription
`torch.set_float32_matmul_precision("high")`, once, before the training. Tensors stay 32 bit.

## When it is wrong
Losses that need all of float32 in their products. Mixed precision (PD301) gains more where it can be used; the two
gains are of the same time.

## Sources
NVIDIA's A100 datasheet; torch's documentation of `set_float32_matmul_precision`; Lightning's own hint at the start of
a run.
"""


def check(session: Session) -> Finding | None:
    """Reads the precision of matrix kernels from their names."""
    setting = session.settings.torch.float32_matmul_precision
    if setting not in (None, "highest"):
        return None
    reading, _ = device_reading_of(session)
    has_tf32 = matrix_units(session, reading.trace).tf32
    if has_tf32 is None:
        raise Skip("whether the device has TF32 is not known")
    kernels = reading.trace.kernels
    matrix_s = kernels.matrix_precisions.get("fp32", 0.0) if kernels is not None else 0.0
    if not has_tf32 or reading.share(matrix_s) < MIN_SHARE:
        return None
    low_s, high_s = device_savings(reading, matrix_s * (1 - 1 / LOW_SPEED_UP), matrix_s * (1 - 1 / HIGH_SPEED_UP))
    if not is_worth_saying(reading, high_s):
        return None
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=f"{percent(reading.share(matrix_s))} of the time is 32-bit matrix kernels that do not use TF32.",
        evidence=(
            share_evidence(reading, "matrix kernels in plain 32 bit", matrix_s, MIN_SHARE),
            *((Evidence(metric="float32_matmul_precision", value=setting),) if setting else ()),
        ),
        prescriptions=(
            Prescription(
                treatment="matmul-precision-high",
                summary='set torch.set_float32_matmul_precision("high")',
                safety="numerics",
                effort="one line",
                code='torch.set_float32_matmul_precision("high")',
            ),
        ),
        low_s=low_s,
        high_s=high_s,
        basis=f"these kernels {LOW_SPEED_UP:g}x to {HIGH_SPEED_UP:g}x faster, as far as the host keeps up",
        confidence="high" if setting else "medium",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
