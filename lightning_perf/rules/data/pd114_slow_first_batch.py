"""PD114: the first batch of an epoch takes much longer than a usual one."""

from __future__ import annotations

import statistics

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_signals import start_waits
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.wording import duration, percent

# Ten times a usual batch is more than filling the pipeline takes; less than 1 % of the epoch cannot be measured.
MIN_RATIO = 10.0
MIN_EPOCH_SHARE = 0.01

DOCS = """\
## What it measures
The median time of the first batch of each later epoch, relative to a usual batch and to the epoch.

## Why it costs
At the start of an epoch nothing is prefetched: training waits for the first batch. Opening files,
building indices or filling caches in the dataset's first access adds to it.

## Example
```python
def __iter__(self):
    self.index = build_index(self.root)  # once an epoch, in each worker
```

## Prescription
Do such work once, in the dataset's constructor, and keep workers (`persistent_workers=True`). If all workers read at
once at the start, use a smaller `prefetch_factor`.

## When it is wrong
If workers restart in each epoch, PD104 is reported instead. Samples that are slow to make are slow in the first batch
as well; in an epoch of few steps that is not a problem of the start.

## Sources
Lightning issue 10389; the documentation of `torch.utils.data.DataLoader`.
"""


def check(session: Session) -> Finding | None:
    """Compare first batches with usual ones."""
    steady = steady_of(session)
    fetch, waits = steady.fetch, start_waits(steady)
    if fetch is None or not waits:
        raise Skip("the first fetch of a second epoch has not been seen")
    loader = loaders_of(session)[0]
    if loader.num_workers and loader.persistent_workers is False:
        return None  # PD104
    epochs = [epoch.wall_s for epoch in session.epochs if epoch.wall_s > 0]
    if not epochs:
        raise Skip("no epoch has ended yet")
    first_s = statistics.median(fetch.first_s[1:])
    share = first_s / statistics.median(epochs)
    if first_s < MIN_RATIO * fetch.wait_s.p50 or share < MIN_EPOCH_SHARE:
        return None
    is_unkept = bool(loader.num_workers) and not loader.persistent_workers
    return timed_finding(
        steady,
        summary=(
            f"The first batch of an epoch takes {duration(first_s)}, {percent(share)} of the epoch. "
            f"A usual batch takes {duration(fetch.wait_s.p50)}."
        ),
        evidence=(
            fact("first batch of an epoch", first_s, "s", MIN_RATIO * fetch.wait_s.p50, len(waits)),
            fact("share of the epoch", share, "fraction", MIN_EPOCH_SHARE),
        ),
        prescriptions=(
            fix(
                "do the dataset's start-up work once, in its constructor"
                + (", and keep its workers: persistent_workers=True" if is_unkept else ""),
                "minutes",
                code="DataLoader(..., persistent_workers=True)" if is_unkept else "",
            ),
        ),
        claims={"epoch_boundary": min(sum(waits), phase_s(steady, "epoch_boundary"))},
        low_s=0.0,
        method="timed",
        basis="at most the time by which first batches took longer than usual ones",
        confidence="medium",
    )


RULE = Rule(code="PD114", name="slow-first-batch", category="data", docs=DOCS, check=check)
