"""PD512: a learning-rate scheduler takes a share of the step."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.signals import phase_s, steady_of
from lightning_perf.rules.timed import removal_finding
from lightning_perf.rules.user_lines import lines_of
from lightning_perf.rules.wording import duration, percent

MIN_SHARE = 0.02  # The least that is worth a finding (severity.LOW_SHARE).

DOCS = """\
## What it measures
The time in `lr_scheduler_step`, which Lightning calls after each step (`interval="step"`) or epoch. It is a phase of
its own and no part of the optimizer's.

## Why it costs
The host computes a learning rate while no operator runs. A `LambdaLR` calls its function once per parameter group.

## Example
```python
LambdaLR(optimizer, lambda step: sum(math.exp(-i) for i in range(step)))
```

## Prescription
Compute the schedule once and look it up, step the scheduler once per epoch where the schedule allows it, or use one of
`torch.optim.lr_scheduler`'s own, which compute the next rate from the last one. The time of your own lines goes away;
what the scheduler itself takes remains. Where no line of yours was sampled, the speedup was not measured.

## When it is wrong
With `interval="epoch"` the learning rate changes less often, which changes the training. A table lookup does not.

## Sources
Timed around Lightning's own call; the line comes from samples of the stack.
"""


def check(session: Session) -> Finding | None:
    """Compare the scheduler's time with the threshold."""
    steady = steady_of(session)
    seconds = phase_s(steady, "scheduler")
    share = seconds / steady.span_s
    if share < MIN_SHARE:
        return None
    each_s = seconds / steady.n_steps
    lines = lines_of(session, "scheduler")
    return removal_finding(
        steady,
        summary=f"{percent(share)} of training time is spent in learning-rate schedulers, {duration(each_s)} per step.",
        evidence=(fact("share of the time in learning-rate schedulers", share, "fraction", MIN_SHARE, steady.n_steps),),
        prescriptions=(
            fix(
                "compute all learning rates once, and look them up",
                "minutes",
                code="rates = [rate(step) for step in range(n_steps + 1)]\nLambdaLR(optimizer, rates.__getitem__)",
            ),
        ),
        timed={"scheduler": seconds},
        left=max(0.0, 1.0 - sum(line.low_s for line in lines) / seconds),
        left_least=max(0.0, 1.0 - sum(line.high_s for line in lines) / seconds) if lines else 0.0,
    )


RULE = Rule(code="PD512", name="slow-scheduler", category="host", docs=DOCS, check=check)
