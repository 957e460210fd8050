"""PD603: much time passes between the last step of an epoch and the first of the next."""

from __future__ import annotations

from lightning_perf.records import Finding, Session, StageTimes
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.line_signals import evidence_of
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.timed import removal_finding
from lightning_perf.rules.user_lines import lines_of
from lightning_perf.rules.wording import duration, percent

MIN_SHARE = 0.05  # Lightning issue 7932.
HOOK = "train_dataloader"
# Epochs twice as long have half the boundaries.
LOW_FRACTION = 0.5

DOCS = """\
## What it measures
The share of the steady wall time between epochs, without validation, checkpoints, logging and callbacks, which are
counted apart.

## Why it costs
At each boundary the loader starts over: the sampler draws a new order, the prefetching begins again, metrics are
reduced. Short epochs pay for it often.

## Example
```python
trainer = Trainer(max_epochs=1000)  # on a dataset of ten batches
```

## Prescription
Longer epochs: repeat the dataset within an epoch, and count steps (`max_steps`) instead of epochs. Where the loader is
made anew for each epoch and that takes the time, `reload_dataloaders_every_n_epochs=0`.

## When it is wrong
Workers that are restarted at each epoch are PD104's; this rule is silent then.

## Sources
Lightning issue 7932.
"""


def check(session: Session) -> Finding | None:
    """Compares the boundary phase with the threshold."""
    steady = steady_of(session)
    if session.run.stage != "fit":
        raise Skip(f"only fit has epochs, this is {session.run.stage}")
    seconds = phase_s(steady, "epoch_boundary")
    share = seconds / steady.span_s
    if share < MIN_SHARE:
        return None
    if session.settings.loaders and any(
        each.num_workers and each.persistent_workers is False for each in loaders_of(session)
    ):
        return None  # PD104
    reloading = _reloading(session, steady)
    if reloading is not None:
        return reloading
    n_steps = [epoch.n_steps for epoch in session.epochs]
    n_boundaries = max(1, max(len(session.epochs), session.run.n_epochs) - 1)  # only the last epochs are kept
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of the time passes between epochs. One boundary takes "
            f"{duration(seconds / n_boundaries)}" + (f", an epoch has {max(n_steps)} steps." if n_steps else ".")
        ),
        evidence=(fact("share of the time between epochs", share, "fraction", MIN_SHARE, n_boundaries),),
        prescriptions=(
            fix(
                "make epochs longer: repeat the dataset within one and count steps",
                "minutes",
                "semantics",
                code="DataLoader(torch.utils.data.ConcatDataset([dataset] * 10), ...)",
            ),
        ),
        claims={"epoch_boundary": seconds},
        low_s=LOW_FRACTION * seconds,
        method="timed",
        basis="half (epochs twice as long) to all of the time between epochs",
        confidence="medium",
    )


def _reloading(session: Session, steady: StageTimes) -> Finding | None:
    """The finding where making the loader anew takes most of the time between epochs."""
    every = session.settings.trainer.reload_dataloaders_every_n_epochs
    line = next((one for one in lines_of(session, "epoch_boundary") if one.line.entry == HOOK), None)
    boundary_s = phase_s(steady, "epoch_boundary")
    if not every or line is None or line.seconds < 0.5 * boundary_s:
        return None
    often = "in each epoch" if every == 1 else f"every {every} epochs"
    return removal_finding(
        steady,
        summary=(
            f"{percent(boundary_s / steady.span_s)} of the time passes between epochs, most of it in "
            f"{HOOK}, which makes the loader anew {often}: {line.where}{line.doing}."
        ),
        evidence=(evidence_of(line, steady),),
        prescriptions=(
            fix(
                "set reload_dataloaders_every_n_epochs=0",
                "one line",
                "semantics",
                trainer_flags={"reload_dataloaders_every_n_epochs": 0},
                code="Trainer(..., reload_dataloaders_every_n_epochs=0)",
            ),
        ),
        timed={"epoch_boundary": boundary_s},
        left=1 - line.low_s / boundary_s,
        left_least=1 - line.high_s / boundary_s,
    )


RULE = Rule(code="PD603", name="epoch-boundary-heavy", category="loop", docs=DOCS, check=check)
