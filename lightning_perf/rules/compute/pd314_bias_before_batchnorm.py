"""PD314: a bias that the batch normalization after it removes."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, not_measured, replayed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.trace_signals import is_blind, reading_of

DOCS = """\
## What it measures
Convolutions with a bias that feed a batch normalization: in a profiler window with recorded shapes by the order of
operators, else by the order in which the model defines its layers. These operators of one step are then replayed with
and without their bias.

## Why it costs
The normalization subtracts the mean, and with it any constant. The bias is added, its gradient computed, and the
optimizer updates it, without any effect.

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
    """Report biases without effect unless a replay shows that leaving them out gains nothing."""
    return replayed_finding(session, _diagnosis(session))


def preflight(session: Session) -> Finding | None:
    """Report the same from the model's layers alone."""
    found = _from_layers(session)
    return not_measured(found) if found is not None else None


def _diagnosis(session: Session) -> Diagnosis | None:
    try:
        trace = reading_of(session).trace
    except Skip:
        return _from_layers(session)
    n = trace.convolutions.bias_before_batch_norm_n if trace.convolutions is not None else None
    if is_blind(trace) or n is None:
        return _from_layers(session)
    return _diagnosed(n, f"{n} convolutions add a bias that the next batch normalization removes") if n else None


def _from_layers(session: Session) -> Diagnosis | None:
    model = session.settings.model
    if model is None:
        raise Skip("the model's layers are not known, and no profiler window recorded shapes of convolutions")
    names = model.conv_bias_before_norm
    shown = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
    symptom = f"{len(names)} convolutions add a bias that the next batch normalization likely removes: {shown}"
    return _diagnosed(len(names), symptom) if names else None


def _diagnosed(n: int, symptom: str) -> Diagnosis:
    return Diagnosis(
        symptom,
        (fact("convolutions with a bias before a batch normalization", n, "count"),),
        fix("create these convolutions with bias=False", "minutes", code="nn.Conv2d(..., bias=False)"),
        "without their bias these operators run",
        replayed_as="no-bias",
        unmeasured="info",
    )


RULE = Rule(
    code="PD314",
    name="bias-before-batchnorm",
    category="compute",
    docs=DOCS,
    check=check,
    preflight=preflight,
    hypothesis=hypothesis_from(_diagnosis),
)
