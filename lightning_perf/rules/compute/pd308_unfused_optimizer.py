"""PD308: the optimizer updates one tensor after another."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, OptimizerSettings, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import is_cpu_run, named_by_kind, phase_s, share_of, steady_of
from lightning_perf.rules.wording import percent

CODE = "PD308"
NAME = "unfused-optimizer"
CATEGORY = "compute"

# Often no more than a tenth of it is won back: below this share that is less than can be measured.
MIN_SHARE = 0.08
# A fused step reads and writes each tensor once instead of once an operation: Adam takes about ten of them. Models of
# few large tensors gain little, those of many small ones most of it.
LOW_FRACTION = 0.1
HIGH_FRACTION = 0.9

DOCS = """\
## What it measures
The share of the time in the optimizer's step (without `zero_grad`), and whether the step runs one operation after
another for each parameter tensor.

## Why it costs
A model has hundreds of parameter tensors, and each takes several small operations: their start costs more than their
work, and each one reads and writes the whole tensor again.

## Example
```python
torch.optim.AdamW(self.parameters(), foreach=False)
```

## Prescription
`fused=True` where the optimizer has it, else `foreach=True`.

## When it is wrong
Gradient clipping is counted in the same phase. On a CPU fused steps gain less for models
of few, large tensors, which are bound by memory either way.

## Sources
torch's pattern matcher for single-tensor optimizers; the documentation of `torch.optim` on foreach and fused.
"""


def check(session: Session) -> Finding | None:
    """Looks at the optimizer phase where a step goes tensor by tensor."""
    steady = steady_of(session)
    model = session.settings.model
    if model is None or not model.optimizers:
        raise Skip("the optimizers are not known")
    slow = next((o for o in model.optimizers if o.implementation == "single-tensor"), None)
    if slow is None:
        if all(o.implementation == "unknown" for o in model.optimizers):
            raise Skip("how the optimizer steps is not known")
        return None
    flag = _flag(session, slow)
    clearing = [time for times in named_by_kind(steady, "loop").values() for time in times if time.name == "zero_grad"]
    step_s = phase_s(steady, "optimizer") - share_of(clearing) * steady.span_s
    share = step_s / steady.span_s
    if flag is None or share < MIN_SHARE:
        return None
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"{percent(share)} of the time goes into the optimizer's step. {slow.class_name} updates {slow.n_tensors} "
            "tensors one by one."
        ),
        evidence=(
            Evidence(
                metric="share of the time in the optimizer's step",
                value=share,
                unit="fraction",
                threshold=MIN_SHARE,
                n=steady.n_steps,
            ),
            Evidence(metric="implementation", value=slow.implementation),
            Evidence(metric="tensors updated", value=slow.n_tensors, unit="count"),
        ),
        prescriptions=(
            Prescription(
                treatment="fused-optimizer" if flag == "fused" else "",
                summary=f"pass {flag}=True to {slow.class_name}",
                safety="numerics",
                effort="one line",
                code=f"torch.optim.{slow.class_name}(self.parameters(), ..., {flag}=True)",
            ),
        ),
        claims={"optimizer": HIGH_FRACTION * step_s},
        low_s=LOW_FRACTION * step_s,
        basis="a tenth to nine tenths of the optimizer's step",
        confidence="medium",
    )


def _flag(session: Session, optimizer: OptimizerSettings) -> str | None:
    """The argument that helps; None where there is none: on a CPU foreach runs tensor by tensor too."""
    if optimizer.supports_fused:
        return "fused"
    return None if is_cpu_run(session) else "foreach"


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
