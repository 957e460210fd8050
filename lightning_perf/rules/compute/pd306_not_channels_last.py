"""PD306: convolutions in 16 bit whose tensors are turned around before and after."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, replayed_finding
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.trace_signals import device_reading_of, on_path_s, share_evidence, work_share
from lightning_perf.rules.wording import percent

MIN_CONVOLUTION_SHARE = 0.30
# What a few hundred steps can tell from noise.
MIN_SHARE = 0.02
HALF = ("bf16", "fp16")
MIN_HALF_FRACTION = 0.5

DOCS = """\
## What it measures
In a profiler window of a model that spends at least 30 % of its kernels' time in convolutions, mostly in 16 bit: the
time on the critical path in kernels that only convert between the layouts NCHW and NHWC. Operators of one step are then
replayed with their images in channels_last.

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
torch's channels-last tutorial (conversions seen in traces of NCHW models under AMP).
"""


def check(session: Session) -> Finding | None:
    """Report kernels that only convert layouts unless a replay shows that channels_last is not faster."""
    return replayed_finding(session, _diagnosis(session))


def _diagnosis(session: Session) -> Diagnosis | None:
    reading, _ = device_reading_of(session)
    kernels = reading.trace.kernels
    share = work_share(reading.trace, "convolution")
    if kernels is None or share < MIN_CONVOLUTION_SHARE:
        return None
    spent_s = on_path_s(reading.trace, kernels.layout_s)
    if reading.share(spent_s) < MIN_SHARE:
        return None
    half_s = sum(kernels.matrix_precisions.get(precision, 0.0) for precision in HALF)
    if half_s < MIN_HALF_FRACTION * kernels.matrix_s:
        return None
    return Diagnosis(
        f"{percent(reading.share(spent_s))} of step time is spent converting memory layouts ({kernels.layout_n} "
        "kernels)",
        (
            share_evidence(reading, "converting layouts, on the critical path", spent_s, MIN_SHARE),
            fact(
                "convolutions ÷ time of all kernels", share, "fraction", MIN_CONVOLUTION_SHARE, reading.trace.n_kernels
            ),
        ),
        fix(
            "convert model and images to channels_last once",
            "minutes",
            "numerics",
            treatment="channels-last",
            code=(
                "model = model.to(memory_format=torch.channels_last)\n"
                "images = images.to(memory_format=torch.channels_last)"
            ),
        ),
        "channels_last runs these operators",
        at_stake=reading.share(spent_s),
    )


RULE = Rule(
    code="PD306",
    name="not-channels-last",
    category="compute",
    docs=DOCS,
    check=check,
    hypothesis=hypothesis_from(_diagnosis),
)
