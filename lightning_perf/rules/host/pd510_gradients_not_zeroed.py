"""PD510: an optimizer steps again on gradients that were not cleared."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.wording import percent

# One step in two: a schedule that clears late now and then is not taken for a forgotten call.
MIN_FRACTION = 0.5

DOCS = """\
## What it measures
Of the optimizer steps watched, those on gradients to which the last step's were still added.

## Why it costs
Gradients add up without end: each step goes in the direction of all batches so far. It costs no time, but the training
that is timed is not the one that was meant.

## Example
```python
def training_step(self, batch, batch_idx):
    optimizer = self.optimizers()  # manual optimization
    self.manual_backward(self.loss(batch))
    optimizer.step()  # no zero_grad
```

## Prescription
`optimizer.zero_grad()` before each backward pass, or after each step.

## When it is wrong
Methods that reuse a gradient over several steps on purpose.

## Sources
The fourth pitfall of the chapter on profiling PyTorch (a forgotten zero_grad).
"""


def check(session: Session) -> Finding | None:
    """Check whether each optimizer's gradients were cleared."""
    model = session.settings.model
    watched = [o for o in model.optimizers if o.steps_without_zero_grad is not None] if model else []
    if not watched:
        raise Skip("optimizer steps were not observed")
    worst = max(watched, key=lambda o: (o.steps_without_zero_grad or 0) / max(1, o.n_steps_watched))
    n_uncleared = worst.steps_without_zero_grad or 0
    fraction = n_uncleared / max(1, worst.n_steps_watched)
    if fraction < MIN_FRACTION:
        return None
    return unsigned_finding(
        # About what is trained, not how fast.
        severity="medium",
        summary=(
            f"{worst.class_name} used gradients that were not cleared in {percent(fraction)} of its steps: "
            "they accumulate from step to step."
        ),
        evidence=(
            fact(
                "steps with gradients that were not cleared", fraction, "fraction", MIN_FRACTION, worst.n_steps_watched
            ),
        ),
        prescriptions=(
            fix("call zero_grad before each backward pass", "one line", "semantics", code="optimizer.zero_grad()"),
        ),
    )


RULE = Rule(code="PD510", name="gradients-not-zeroed", category="host", docs=DOCS, check=check)
