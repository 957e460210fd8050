"""PD111: validation waits for its loader."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import plan_workers
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import MIN_SPAN_S, MIN_STEPS, loaders_of, phase_s, steady_of
from lightning_perf.rules.wording import percent

# As for training (PD101).
MIN_SHARE = 0.05

DOCS = """\
## What it measures
The share of validation's time spent blocked in the validation loader's `next`.

## Why it costs
The validation loader is often forgotten when the training loader is tuned. Its steps have no backward pass, so they
need batches faster than training does.

## Example
```python
def val_dataloader(self):
    return DataLoader(self.val_set, batch_size=32)  # no workers
```

## Prescription
Workers for the validation loader, by the same model as PD101. The severity counts what it costs of the whole training:
waiting for half of a validation that takes 4 % of the time is a small matter.

## When it is wrong
The first batches of each validation wait for workers to start; short validations consist of little else, and persistent
workers help more there than more workers.

## Sources
As for PD101.
"""


def check(session: Session) -> Finding | None:
    """Compare waiting with validation's time; the claim is of the whole training."""
    steady = steady_of(session)
    validation = session.validation
    if validation is None or validation.span_s < MIN_SPAN_S:
        raise Skip(session.missing.get("validation", "no validation was seen inside fit"))
    if validation.n_steps < MIN_STEPS:
        raise Skip(f"{validation.n_steps} batches of validation; at least {MIN_STEPS} are needed")
    share = phase_s(validation, "data_wait") / validation.span_s
    if share < MIN_SHARE:
        return None
    loader = loaders_of(session, "val")[0]
    plan = plan_workers(session, loader, validation, share * validation.span_s / validation.n_steps)
    if plan.is_too_cheap:
        return None
    validation_s = phase_s(steady, "validation")
    can_prescribe = plan.n_workers > 0 and loader.num_workers is not None
    scale = validation.n_steps / validation.span_s * validation_s
    if can_prescribe:
        code = f"DataLoader(..., num_workers={plan.n_workers}, persistent_workers=True)  # in val_dataloader"
        advice = fix(
            f"set num_workers={plan.n_workers} (now {plan.n_now}) on the validation loader", "one line", code=code
        )
    else:
        advice = fix("make validation samples cheaper or cache them", "hours")
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of validation is spent waiting for data. Validation is "
            f"{percent(validation_s / steady.span_s)} of training time."
        ),
        evidence=(
            fact("share of validation waiting for data", share, "fraction", MIN_SHARE, validation.n_steps),
            fact("validation's share of the time", validation_s / steady.span_s, "fraction"),
            fact(f"time to make one batch ({plan.basis})", plan.batch_s, "s"),
        ),
        prescriptions=(advice,),
        claims={"validation": plan.saved_high_s * scale if can_prescribe else share * validation_s},
        low_s=plan.saved_low_s * scale if can_prescribe else 0.0,
        method=plan.method if can_prescribe else "timed",
        basis="estimated from validation batch times" if can_prescribe else "at most all of validation's waiting",
    )


RULE = Rule(
    code="PD111", name="starved-validation-loader", category="data", docs=DOCS, check=check, explains=("PD601",)
)
