"""PD316: gradients are overwritten with zeros instead of dropped."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, replayed_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.severity import LOW_SHARE
from lightning_perf.rules.signals import share_of, steady_of
from lightning_perf.rules.wording import percent

# torch's pattern matcher reports it at any cost; below 1 % it is not worth a line.
MIN_SHARE = 0.01
# Adding to zeros reads and writes each gradient once more: with their clearing at least as much again goes away.
ACCUMULATING_FACTOR = 2.0

DOCS = """\
## What it measures
Whether `zero_grad` left gradients in place as zeros, and the share of the time that it takes. Clearing gradients and
accumulating new ones is then replayed both ways on copies of sampled parameters.

## Why it costs
Zeroing writes every gradient, and the next backward pass reads it again to add to it. Dropped gradients are simply
written.

## Example
```python
def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
    optimizer.zero_grad(set_to_none=False)
```

## Prescription
`zero_grad(set_to_none=True)`, which is the default.

## When it is wrong
Code that reads `.grad` of parameters that took no part in the step must handle None.

## Sources
torch's pattern matcher (gradients not set to None); the documentation of `torch.optim.Optimizer.zero_grad`.
"""


def check(session: Session) -> Finding | None:
    """Report gradients kept as zeros unless a replay shows that dropping them gains nothing."""
    return replayed_finding(session, _diagnosis(session))


def _diagnosis(session: Session) -> Diagnosis | None:
    steady = steady_of(session)
    model = session.settings.model
    seen = [o.zero_grad_keeps_tensors for o in model.optimizers] if model is not None else []
    if not any(keeps is not None for keeps in seen):
        raise Skip("how gradients are cleared was not seen")
    if not any(seen):
        return None
    times = [time for time in steady.named if time.kind == "loop" and time.name == "zero_grad"]
    if not times:
        raise Skip("the time in zero_grad was not measured")
    share, n = share_of(times), sum(time.n_calls for time in times)
    if share < MIN_SHARE:
        return None
    metric = "share of the time in zero_grad"
    return Diagnosis(
        f"{percent(share)} of the time is spent filling gradients with zeros",
        (fact(metric, share, "fraction", MIN_SHARE, n), fact("gradients kept as zeros", True)),
        fix("call zero_grad(set_to_none=True)", "one line", code="optimizer.zero_grad(set_to_none=True)"),
        "with set_to_none=True clearing and accumulating gradients is",
        replayed_as="zero-grad-none",
        phases=("optimizer", "backward"),
        most_s=ACCUMULATING_FACTOR * share * steady.span_s,
        unmeasured="low" if share >= LOW_SHARE else "info",
    )


RULE = Rule(
    code="PD316",
    name="grads-zeroed-not-dropped",
    category="compute",
    docs=DOCS,
    check=check,
    hypothesis=hypothesis_from(_diagnosis),
)
