"""PD110: rows of tensors in memory are fetched one at a time."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import (
    MIN_WAIT_SHARE,
    indexes_rows,
    is_transport_costly,
    is_waiting,
    wait_evidence,
)
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.wording import duration, spent_waiting

DOCS = """\
## What it measures
Whether samples are rows of tensors in memory (as in a `TensorDataset`) that are fetched one at a time while training
waits.

## Why it costs
Indexing a tensor costs some microseconds, however few bytes it returns; a batch of 256 samples of two fields pays that
512 times, and collating stacks the rows again.

## Example
```python
DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)  # 512 lookups and two stacks per batch
```

## Prescription
Let the sampler return lists of indices, so that the dataset returns whole batches. Worker processes would only add the
cost of moving them.

## When it is wrong
Where each row is changed before it is returned, the change has to work on a whole batch as well.

## Sources
The documentation of `torch.utils.data` on disabling automatic batching.
"""


def check(session: Session) -> Finding | None:
    """Find rows of tensors that are fetched one by one while training waits."""
    feeding = feeding_of(session)
    probe = feeding.probe
    if not indexes_rows(probe) or feeding.share < MIN_WAIT_SHARE:
        return None
    if is_waiting(probe) or is_transport_costly(feeding):
        return None  # PD106, PD109
    batch_size = probe.batch_size or 1
    return timed_finding(
        feeding.stage,
        summary=(
            f"{spent_waiting(feeding.share)}: tensors in memory are indexed "
            f"sample by sample. Fetching {batch_size} rows one at a time takes {duration(feeding.batch_s)} per batch."
        ),
        evidence=(
            wait_evidence(feeding),
            fact("time per batch, row by row", feeding.batch_s, "s"),
            fact("num_workers", feeding.plan.n_now),
        ),
        prescriptions=(
            fix(
                "fetch whole batches: pass a BatchSampler as sampler, and batch_size=None",
                "minutes",
                code=(
                    f"sampler = BatchSampler(RandomSampler(dataset), batch_size={batch_size}, drop_last=False)\n"
                    "DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=0)"
                ),
            ),
        ),
        claims={"data_wait": feeding.stage.n_steps * feeding.wait_s},
        low_s=0.0,
        basis="at most the waiting, if one lookup of the whole batch took no time",
        confidence="high" if feeding.plan.n_now == 0 else "medium",
    )


RULE = Rule(
    code="PD110", name="per-sample-indexing-of-tensors", category="data", docs=DOCS, check=check, explains=("PD101",)
)
