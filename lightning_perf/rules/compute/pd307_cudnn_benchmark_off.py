"""PD307: convolutions of one shape without cuDNN's benchmark mode."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, replayed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import device_reading_of, kind_s, share_evidence, work_share
from lightning_perf.rules.wording import percent

MIN_CONVOLUTION_SHARE = 0.30

DOCS = """\
## What it measures
In a profiler window with recorded shapes: convolutions take at least 30 % of the kernels' time, their first input has
one shape, and `torch.backends.cudnn.benchmark` is off. The convolutions of one step are then replayed with it on and
off, in threads of their own: cuDNN keeps its choices by thread, so the training's stay as they are.

## Why it costs
cuDNN has several algorithms for each convolution. It chooses by a heuristic unless it may time them once for each
shape.

## Example
```python
Trainer(benchmark=False)  # images of one size
```

## Prescription
`Trainer(benchmark=True)`.

## When it is wrong
With inputs of many shapes each new shape is timed again, which costs more than it gains. Algorithms may differ from
run to run, and take more memory.

## Sources
torch's performance tuning guide; Lightning's `benchmark` flag.
"""


def check(session: Session) -> Finding | None:
    """Report that benchmark mode is off unless a replay shows that it gains nothing."""
    return replayed_finding(session, _diagnosis(session))


def _diagnosis(session: Session) -> Diagnosis | None:
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
    metric = "convolutions ÷ time of all kernels"
    return Diagnosis(
        f"{percent(share)} of kernel time is convolutions of one input shape, and cudnn.benchmark is off",
        (
            share_evidence(reading, "convolutions", kind_s(reading.trace, "convolution")),
            fact(metric, share, "fraction", MIN_CONVOLUTION_SHARE, convolutions.n),
            fact("cudnn.benchmark", False),
        ),
        fix(
            "set benchmark=True",
            "one line",
            "numerics",
            treatment="cudnn-benchmark",
            trainer_flags={"benchmark": True},
            code="Trainer(..., benchmark=True)",
        ),
        "benchmark=True runs these operators",
    )


RULE = Rule(
    code="PD307",
    name="cudnn-benchmark-off",
    category="compute",
    docs=DOCS,
    check=check,
    hypothesis=hypothesis_from(_diagnosis),
)
