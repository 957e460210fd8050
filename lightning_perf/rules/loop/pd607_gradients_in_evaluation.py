"""PD607: validation builds autograd graphs."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.gain import reaching, timed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import phase_s, steady_of

CODE = "PD607"
NAME = "gradients-in-evaluation"
CATEGORY = "loop"

# Recording the graph adds some bookkeeping an operation; the memory that it holds matters more than its time.
USUAL_FRACTION = 0.3
# That memory is fresh each time, which small models feel: more than half of their validation was measured.
HIGH_FRACTION = 0.6
BASIS = "from nothing to three fifths of validation"

DOCS = """\
## What it measures
Whether the outputs of validation steps hold an autograd graph.

## Why it costs
Each operation is recorded and its inputs are kept for a backward pass that never comes: validation takes more memory
and time than it needs.

## Example
```python
trainer = Trainer(inference_mode=False)

def validation_step(self, batch, batch_idx):
    with torch.enable_grad():
        return self.loss(batch)
```

## Prescription
`inference_mode=True`, which is the default, and no `enable_grad` in validation.

## When it is wrong
Models that need gradients in validation: input gradients, energy-based models, adversarial checks.

## Sources
The third pitfall of the chapter on profiling PyTorch (no `no_grad` in inference).
"""


def check(session: Session) -> Finding | None:
    """Reads what was seen of validation's outputs."""
    steady = steady_of(session)
    model, trainer = session.settings.model, session.settings.trainer
    if model is None or model.eval_outputs_have_graph is None:
        raise Skip("whether validation's outputs hold a graph was not seen")
    if not model.eval_outputs_have_graph:
        return None
    is_off = trainer.is_inference_mode is False
    finding = timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary="Validation builds autograd graphs that nothing uses. They take memory and time.",
        evidence=(
            Evidence(metric="validation's outputs hold a graph", value=True),
            Evidence(
                metric="inference_mode",
                value="unknown" if trainer.is_inference_mode is None else trainer.is_inference_mode,
            ),
        ),
        prescriptions=(
            Prescription(
                treatment="",
                summary="set inference_mode=True" if is_off else "drop enable_grad from validation_step",
                safety="exact",
                effort="one line",
                trainer_flags={"inference_mode": True} if is_off else {},
                code="Trainer(..., inference_mode=True)" if is_off else "",
            ),
        ),
        claims={"validation": USUAL_FRACTION * phase_s(steady, "validation")},
        low_s=0.0,
        basis=BASIS,
        confidence="medium",
    )
    return reaching(finding, steady, {"validation": HIGH_FRACTION * phase_s(steady, "validation")}, BASIS)


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
