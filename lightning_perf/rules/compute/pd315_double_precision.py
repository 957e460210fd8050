"""PD315: parameters in float64."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, replayed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import steady_of
from lightning_perf.rules.wording import percent

CODE = "PD315"
NAME = "double-precision"
CATEGORY = "compute"

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
    return replayed_finding(session, _diagnosis(session))


def _diagnosis(session: Session) -> Diagnosis | None:
    fraction = _float64_fraction(session)
    if fraction < MIN_ELEMENT_FRACTION:
        return None
    steady_of(session)
    return Diagnosis(
        CODE,
        NAME,
        CATEGORY,
        f"{percent(fraction)} of the parameters are float64",
        _evidence(session, fraction),
        _prescription(session),
        "float32 runs their operators",
        replayed_as="float32",
    )


def preflight(session: Session) -> Finding | None:
    """The same from the parameters' dtypes alone."""
    fraction = _float64_fraction(session)
    if fraction < MIN_ELEMENT_FRACTION:
        return None
    return Finding(
        code=CODE,
        name=NAME,
        category=CATEGORY,
        severity="medium",
        summary=f"{percent(fraction)} of the parameters are float64, which likely doubles the time that they take.",
        evidence=_evidence(session, fraction),
        prescriptions=(_prescription(session),),
    )


def _float64_fraction(session: Session) -> float:
    model = session.settings.model
    if model is None or not model.parameters:
        raise Skip("the model's parameters are not known")
    total = sum(group.n_elements for group in model.parameters)
    return sum(group.n_elements for group in model.parameters if group.dtype == "float64") / max(1, total)


def _evidence(session: Session, fraction: float) -> tuple[Evidence, ...]:
    return (
        Evidence(
            metric="fraction of the parameters in float64",
            value=fraction,
            unit="fraction",
            threshold=MIN_ELEMENT_FRACTION,
        ),
        Evidence(metric="precision", value=session.settings.trainer.precision or "unknown"),
    )


def _prescription(session: Session) -> Prescription:
    is_asked = str(session.settings.trainer.precision).startswith("64")
    return Prescription(
        treatment="",
        summary='set precision="32-true"' if is_asked else "use float32 parameters and inputs",
        safety="numerics",
        effort="one line",
        trainer_flags={"precision": "32-true"} if is_asked else {},
        code='Trainer(..., precision="32-true")' if is_asked else "model = model.float()",
    )


RULE = Rule(
    code=CODE,
    name=NAME,
    category=CATEGORY,
    docs=DOCS,
    check=check,
    preflight=preflight,
    hypothesis=hypothesis_from(_diagnosis),
)
