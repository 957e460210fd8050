"""PD314: a bias that the batch normalisation after it takes away again."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import Reading, code_phases, is_blind, reading_of, share_evidence, trace_finding

CODE = "PD314"
NAME = "bias-before-batchnorm"
CATEGORY = "compute"

DOCS = """\
## What it measures
Convolutions with a bias that feed a batch normalisation: in a profiler window with recorded shapes by the order of
operators, else by the order in which the model defines its layers. The gain is the time of adding these biases.

## Why it costs
The normalisation subtracts the mean, and with it any constant. The bias is added, its gradient computed, and the
optimizer updates it, for nothing.

## Example
```python
nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))
```

## Prescription
`nn.Conv2d(3, 64, 3, bias=False)`.

## When it is wrong
The order of definition is not always the order of execution. A checkpoint made with the bias has to be loaded with
`strict=False`.

## Sources
torch's performance tuning guide; torch's `_pattern_matcher` (Conv2d bias followed by BatchNorm2d).
"""


def check(session: Session) -> Finding | None:
    """Reads the operators of a window, else the model's layers."""
    try:
        reading: Reading | None = reading_of(session)
    except Skip:
        reading = None
    if reading is not None and not is_blind(reading.trace):
        convolutions = reading.trace.convolutions
        if convolutions is not None and convolutions.bias_before_batch_norm_n is not None:
            return _measured(reading, convolutions.bias_before_batch_norm_n, convolutions.bias_s)
    if session.settings.model is None:
        raise Skip("the model's layers are not known, and no profiler window recorded shapes of convolutions")
    return preflight(session)


def preflight(session: Session) -> Finding | None:
    """Reads the model's layers."""
    model = session.settings.model
    names = model.conv_bias_before_norm if model is not None else ()
    if not names:
        return None
    shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    return Finding(
        code=CODE,
        name=NAME,
        category=CATEGORY,
        severity="info",
        summary=(
            f"{len(names)} convolutions add a bias that the batch normalisation after them likely takes away: {shown}."
        ),
        evidence=(
            Evidence(metric="convolutions with a bias before a batch normalisation", value=len(names), unit="count"),
        ),
        prescriptions=(_without_bias(),),
        confidence="medium",
    )


def _measured(reading: Reading, n: int, bias_s: float | None) -> Finding | None:
    if n == 0:
        return None
    summary = f"{n} convolutions of the window add a bias that the batch normalisation after them takes away."
    found = Evidence(metric="convolutions with a bias before a batch normalisation", value=n, unit="count")
    if bias_s is None:  # what adding them takes cannot be told apart
        return Finding(
            code=CODE,
            name=NAME,
            category=CATEGORY,
            severity="info",
            summary=summary,
            evidence=(found,),
            prescriptions=(_without_bias(),),
        )
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=summary,
        evidence=(found, share_evidence(reading, "adding these biases", bias_s)),
        prescriptions=(_without_bias(),),
        low_s=0.0,
        high_s=bias_s,
        phases=code_phases(reading) if reading.trace.device is None else (),
        method="timed",
        basis="adding the biases forward",
    )


def _without_bias() -> Prescription:
    return Prescription(
        treatment="",
        summary="make these convolutions with bias=False",
        safety="exact",
        effort="minutes",
        code="nn.Conv2d(..., bias=False)",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check, preflight=preflight)
