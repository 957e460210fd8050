"""PD402: activations are most of what a tight memory holds."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.memory_signals import CHECKPOINTING, bf16_of, breakdown_of, is_tight, whole_of
from lightning_perf.rules.parts import fact, unsigned_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.wording import percent, size_text

# More than everything else together: only then does a change of this one part change the whole.
MIN_FRACTION = 0.5

DOCS = """\
## What it measures
Activations (tensors saved for the backward pass in one step, or the rest of the peak) over all that memory holds,
where memory is tight: near capacity, with allocation retries, or after running out.

## Why it costs
They grow with the batch: the batch is limited by what could be computed again.

## Example
```python
out = self.blocks(x)  # each block keeps its activations until backward
```

## Prescription
Activation checkpointing: half of them or less for 20 to 30 % more time. bf16 halves them as well.

## When it is wrong
Where they were not measured they stand for all that nobody named, temporary buffers included; the breakdown says
which.

## Sources
The project's first source on training performance: activations above half of the peak, checkpointing 20-30 % slower
for half the memory or less.
"""


def check(session: Session) -> Finding | None:
    """Compare activations with the peak."""
    breakdown = breakdown_of(session)
    if breakdown.activations_bytes is None:
        raise Skip(breakdown.activations_basis)
    whole = whole_of(breakdown)
    if whole <= 0:
        raise Skip("no memory was counted")
    fraction = breakdown.activations_bytes / whole
    if fraction <= MIN_FRACTION or not is_tight(session):
        return None
    return unsigned_finding(
        severity="medium",
        summary=(
            f"Activations are {percent(fraction)} of the memory in use ({size_text(breakdown.activations_bytes)}), "
            "and memory limits this run."
        ),
        evidence=(
            fact("activations ÷ memory in use", fraction, "fraction", MIN_FRACTION),
            fact("activations", breakdown.activations_bytes, "bytes"),
        ),
        prescriptions=(CHECKPOINTING, *bf16_of(session)),
    )


RULE = Rule(code="PD402", name="activations-dominate", category="memory", docs=DOCS, check=check)
