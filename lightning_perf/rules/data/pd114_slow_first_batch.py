"""PD114: the first batch of an epoch takes many times a usual one."""

from __future__ import annotations

import statistics

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.wording import duration, percent

# Ten times a usual fetch is more than the filling of the pipeline; 1 % of the epoch is where it can be measured.
MIN_RATIO = 10.0
MIN_EPOCH_SHARE = 0.01

DOCS = """\
## What it measures
The median time of each later epoch's first fetch over the median of all fetches, and over the epoch.

## Why it costs
At the start of an epoch nothing is prefetched: the first batch is made while the training waits. Opening files,
building indices or filling caches in the dataset's first access adds to it.

## Example
```python
def __iter__(self):
    self.index = build_index(self.root)  # once an epoch, in each worker
```

## Prescription
Do such work once, in the dataset's constructor, and keep workers (`persistent_workers=True`); a smaller
`prefetch_factor` where all workers read at once at the start.

## When it is wrong
Where workers are restarted each epoch, PD104 speaks instead. Samples that are slow to make are slow in the first
batch as well: with few steps an epoch that is no fault of the start.

## Sources
Lightning issue 10389; the documentation of `torch.utils.data.DataLoader`.
"""


def check(session: Session) -> Finding | None:
    """Compares first fetches with usual ones."""
    steady = steady_of(session)
    fetch = steady.fetch
    if fetch is None or len(fetch.first_s) < 2:
        raise Skip("the first fetch of a second epoch has not been seen")
    loader = loaders_of(session)[0]
    if loader.num_workers and loader.persistent_workers is False:
        return None  # PD104
    first_s = statistics.median(fetch.first_s[1:])
    epochs = [epoch.wall_s for epoch in session.epochs if epoch.wall_s > 0]
    if not epochs:
        raise Skip("no epoch has ended yet")
    share = first_s / statistics.median(epochs)
    if first_s < MIN_RATIO * fetch.wait_s.p50 or share < MIN_EPOCH_SHARE:
        return None
    is_unkept = bool(loader.num_workers) and not loader.persistent_workers
    excess_s = sum(max(0.0, each - fetch.wait_s.p50) for each in fetch.first_s[1:])
    return timed_finding(
        steady,
        summary=(
            f"The first batch of an epoch takes {duration(first_s)}, {percent(share)} of the epoch. A usual one takes "
            f"{duration(fetch.wait_s.p50)}."
        ),
        evidence=(
            fact("first fetch of an epoch", first_s, "s", MIN_RATIO * fetch.wait_s.p50, len(fetch.first_s) - 1),
            fact("share of the epoch", share, "fraction", MIN_EPOCH_SHARE),
        ),
        prescriptions=(
            fix(
                (
                    "do the dataset's start-up work once, in its constructor"
                    + (", and keep its workers" if is_unkept else "")
                ),
                "minutes",
                code="DataLoader(..., persistent_workers=True)" if is_unkept else "",
            ),
        ),
        claims={"epoch_boundary": min(excess_s, phase_s(steady, "epoch_boundary"))},
        low_s=0.0,
        method="timed",
        basis="from nothing to all that first fetches took beyond a usual one",
        confidence="medium",
    )


RULE = Rule(code="PD114", name="slow-first-batch", category="data", docs=DOCS, check=check)
