"""PD104: worker processes are started anew at each epoch."""

from __future__ import annotations

from lightning_perf.records import Finding, LoaderSettings, Prescription, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.wording import duration, percent

# Lightning issue 10389: from about these on users ask why epochs are slow to begin.
MIN_SHARE = 0.02
MIN_BOUNDARY_S = 1.0
# What persistent workers win back at least: their first batch of an epoch still has to be made from scratch.
LOW_FRACTION = 0.5

DOCS = """\
## What it measures
The time between the last step of an epoch and the first of the next, with the wait for the first batch, where a loader
has workers that are not persistent.

## Why it costs
At each epoch the workers end and new ones start: processes are forked or spawned, the dataset is copied or pickled, and
the first batch waits for all of it.

## Example
```python
DataLoader(dataset, num_workers=8)  # 8 processes start at every epoch
```

## Prescription
`persistent_workers=True`.

## When it is wrong
Persistent workers keep their memory and their copy of the dataset: a dataset that is changed between epochs is not seen
by them. With `reload_dataloaders_every_n_epochs` the loaders are made anew anyway, and this rule stays silent.

## Sources
Lightning issue 10389; the profiling lecture's loader checklist.
"""


def check(session: Session) -> Finding | None:
    """Looks at the epochs' boundaries where workers are not persistent."""
    steady = steady_of(session)
    loader = _restarting_loader(session)
    if loader is None:
        return None
    boundary_s = phase_s(steady, "epoch_boundary")
    n_kept = sum(epoch.boundary_s is not None for epoch in session.epochs) or max(0, len(session.epochs) - 1)
    if n_kept == 0:
        raise Skip("no epoch has been followed by another one yet")
    n_boundaries = n_kept + max(0, session.run.n_epochs - len(session.epochs))  # only the last epochs are kept
    each_s = boundary_s / n_boundaries
    share = boundary_s / steady.span_s
    if share < MIN_SHARE and each_s < MIN_BOUNDARY_S:
        return None
    return timed_finding(
        steady,
        summary=(
            f"{percent(share)} of the time goes into starting the {loader.num_workers} loader workers again at each "
            f"epoch. That is {duration(each_s)} an epoch."
        ),
        evidence=(
            fact("share of the time between epochs", share, "fraction", MIN_SHARE, n_boundaries),
            fact("time between epochs", each_s, "s", MIN_BOUNDARY_S, n_boundaries),
            fact("persistent_workers", False),
        ),
        prescriptions=(_prescription(loader),),
        claims={"epoch_boundary": boundary_s},  # the wait for each first batch is counted there
        low_s=LOW_FRACTION * boundary_s,
        method="timed",
        basis="from half of the measured time between epochs to all of it, the wait for each first batch included",
    )


def preflight(session: Session) -> Finding | None:
    """The same from the loader's and the Trainer's flags."""
    loader = _restarting_loader(session)
    if loader is None or session.settings.trainer.max_epochs == 1:
        return None
    return unsigned_finding(
        severity="low",
        summary=f"Each epoch will likely begin with starting {loader.num_workers} loader workers again.",
        evidence=(fact("persistent_workers", False),),
        prescriptions=(_prescription(loader),),
    )


def _restarting_loader(session: Session) -> LoaderSettings | None:
    if session.run.stage != "fit":
        raise Skip(f"only fit has epochs, this is {session.run.stage}")
    loaders = loaders_of(session)
    if session.settings.trainer.reload_dataloaders_every_n_epochs:
        return None
    if all(loader.num_workers is None for loader in loaders):
        raise Skip("the number of workers is not known")
    return next((each for each in loaders if each.num_workers and each.persistent_workers is False), None)


def _prescription(loader: LoaderSettings) -> Prescription:
    return fix(
        "set persistent_workers=True",
        "one line",
        treatment="loader-persistent" if loader.is_plain else "",
        loader_args={"persistent_workers": True} if loader.is_plain else {},
        code=f"DataLoader(..., num_workers={loader.num_workers}, persistent_workers=True)",
    )


RULE = Rule(
    code="PD104", name="workers-restarted-each-epoch", category="data", docs=DOCS, check=check, preflight=preflight
)
