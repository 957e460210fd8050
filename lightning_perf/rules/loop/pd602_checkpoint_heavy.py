"""PD602: saving checkpoints takes a share of the training's time."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.signals import named_by_kind, phase_s, steady_of
from lightning_perf.rules.wording import percent

CODE = "PD602"
NAME = "checkpoint-heavy"
CATEGORY = "loop"

MIN_SHARE = 0.05  # Lightning issue 11561.
# Half as often costs half. Written in the background, the copy of the weights is still made while the training waits.
LOW_FRACTION = 0.5
HIGH_FRACTION = 0.9

DOCS = """\
## What it measures
The share of the steady wall time spent saving checkpoints.

## Why it costs
Weights and optimizer states are copied from the device, serialised and written while the training waits.

## Example
```python
ModelCheckpoint(every_n_train_steps=10)
```

## Prescription
Save less often, or write in the background with `AsyncCheckpointIO`.

## When it is wrong
On machines that may be taken away at any time, frequent checkpoints are an insurance. Writing in the background needs
memory for a second copy of the weights.

## Sources
Lightning issue 11561; Lightning's documentation of `AsyncCheckpointIO`.
"""


def check(session: Session) -> Finding | None:
    """Compares the checkpoint phase with the threshold."""
    steady = steady_of(session)
    seconds = phase_s(steady, "checkpoint")
    share = seconds / steady.span_s
    if share < MIN_SHARE:
        return None
    names = named_by_kind(steady, "checkpoint_callback")
    name = next(iter(names), "ModelCheckpoint")
    return timed_finding(
        steady,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=f"{percent(share)} of the time goes into saving checkpoints.",
        evidence=(
            Evidence(metric="share of the time saving checkpoints", value=share, unit="fraction", threshold=MIN_SHARE),
            Evidence(metric="saved by", value=name),
        ),
        prescriptions=(
            Prescription(
                treatment="",
                summary="save less often",
                safety="exact",
                effort="one line",
                code=f"{name}(every_n_epochs=1)  # or a larger every_n_train_steps",
            ),
            Prescription(
                treatment="async-checkpoint",
                summary="write checkpoints in the background",
                safety="exact",
                effort="one line",
                code=(
                    "from lightning.pytorch.plugins.io import AsyncCheckpointIO\n"
                    "Trainer(..., plugins=[AsyncCheckpointIO()])"
                ),
            ),
        ),
        claims={"checkpoint": HIGH_FRACTION * seconds},
        low_s=LOW_FRACTION * seconds,
        method="timed",
        basis="half (saved half as often) to nine tenths (written in the background) of the saving",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
