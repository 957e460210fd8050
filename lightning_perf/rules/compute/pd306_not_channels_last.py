"""PD306: convolutions in 16 bit whose tensors are turned around before and after."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.trace_signals import (
    device_reading_of,
    device_savings,
    is_worth_saying,
    share_evidence,
    trace_finding,
    work_share,
)
from lightning_perf.rules.wording import percent

CODE = "PD306"
NAME = "not-channels-last"
CATEGORY = "compute"

MIN_CONVOLUTION_SHARE = 0.30
# What a few hundred steps can tell from noise.
MIN_SHARE = 0.02
HALF = ("bf16", "fp16")
MIN_HALF_FRACTION = 0.5

DOCS = """\
## What it measures
In a profiler window of a model that spends at least 30 % of its kernels' time in convolutions, mostly in 16 bit: the
time in kernels that only convert between the layouts NCHW and NHWC.

## Why it costs
Matrix units convolve with channels last. Tensors with channels first are converted before each convolution and back
after it.

## Example
```python
trainer = Trainer(precision="bf16-mixed")  # and the model as it was made, channels first
```

## Prescription
`model = model.to(memory_format=torch.channels_last)`, and the same for the images of a batch.

## When it is wrong
Layers that do not know channels last convert back by themselves: the conversions move instead of going away. Small
channel counts gain little.

## Sources
torch's channels-last tutorial (conversions seen in traces of NCHW models under AMP); the case study on convolutions.
"""


def check(session: Session) -> Finding | None:
    """Charges kernels that only convert layouts."""
    reading, _ = device_reading_of(session)
    kernels = reading.trace.kernels
    share = work_share(reading.trace, "convolution")
    if kernels is None or share < MIN_CONVOLUTION_SHARE or reading.share(kernels.layout_s) < MIN_SHARE:
        return None
    half_s = sum(kernels.matrix_precisions.get(precision, 0.0) for precision in HALF)
    if half_s < MIN_HALF_FRACTION * kernels.matrix_s:
        return None
    low_s, high_s = device_savings(reading, 0.0, kernels.layout_s)
    if not is_worth_saying(reading, high_s):
        return None
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(reading.share(kernels.layout_s))} of the time kernels only convert between NCHW and NHWC. "
            f"{kernels.layout_n} conversions in the window, around convolutions in 16 bit."
        ),
        evidence=(
            share_evidence(reading, "converting layouts", kernels.layout_s, MIN_SHARE),
            Evidence(
                metric="convolutions in the kernels' time",
                value=share,
                unit="fraction",
                threshold=MIN_CONVOLUTION_SHARE,
                n=reading.trace.n_kernels,
            ),
        ),
        prescriptions=(
            Prescription(
                treatment="channels-last",
                summary="keep model and images in channels_last",
                safety="numerics",
                effort="minutes",
                code=(
                    "model = model.to(memory_format=torch.channels_last)\n"
                    "images = images.to(memory_format=torch.channels_last)"
                ),
            ),
        ),
        low_s=low_s,
        high_s=high_s,
        basis="at most the conversions themselves",
        confidence="medium",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
