"""PD315: parameters in float64."""

from __future__ import annotations

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, not_measured, replayed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.wording import percent

# Single scalars kept in float64 cost nothing; from 1 % of the elements on it is part of the model.
MIN_ELEMENT_FRACTION = 0.01

DOCS = """\
## What it measures
The fraction of the parameters' elements that are float64. The operators of one step that compute in float64 are then
replayed in float32.

## Why it costs
float64 takes twice the memory and at most half the rate of float32; many graphics cards compute it at 1/32 of it.
NumPy's default is float64, and it spreads from a single tensor.

## Example
```python
self.scale = nn.Parameter(torch.from_numpy(np.ones(1024)))  # float64
```

## Prescription
float32: `tensor.float()`, `precision="32-true"` instead of `"64-true"`.

## When it is wrong
Some scientific models need double precision. Ignore the rule there: `PerfDoctor(ignore=["PD315"])`. Without a replay no
speedup is promised.

## Sources
NVIDIA's datasheets for float64 rates.
"""


def check(session: Session) -> Finding | None:
    """Report float64 parameters unless a replay shows that float32 is not faster."""
    found = _diagnosis(session)
    if found is not None:
        steady_of(session)
    return replayed_finding(session, found)


def preflight(session: Session) -> Finding | None:
    """Report the same from the parameters' dtypes alone."""
    found = _diagnosis(session)
    return not_measured(found) if found is not None else None


def _diagnosis(session: Session) -> Diagnosis | None:
    model = session.settings.model
    if model is None or not model.parameters:
        raise Skip("the model's parameters are not known")
    n_double = sum(group.n_elements for group in model.parameters if group.dtype == "float64")
    fraction = n_double / max(1, sum(group.n_elements for group in model.parameters))
    if fraction < MIN_ELEMENT_FRACTION:
        return None
    metric = "fraction of the parameters in float64"
    return Diagnosis(
        f"{percent(fraction)} of the parameters are float64",
        (
            fact(metric, fraction, "fraction", MIN_ELEMENT_FRACTION),
            fact("precision", session.settings.trainer.precision or "unknown"),
        ),
        _prescription(session),
        "float32 runs their operators",
        replayed_as="float32",
    )


def _prescription(session: Session) -> Prescription:
    is_asked = str(session.settings.trainer.precision).startswith("64")
    return fix(
        'set precision="32-true"' if is_asked else "use float32 parameters and inputs",
        "one line",
        "numerics",
        trainer_flags={"precision": "32-true"} if is_asked else {},
        code='Trainer(..., precision="32-true")' if is_asked else "model = model.float()",
    )


RULE = Rule(
    code="PD315",
    name="double-precision",
    category="compute",
    docs=DOCS,
    check=check,
    preflight=preflight,
    hypothesis=hypothesis_from(_diagnosis),
)
