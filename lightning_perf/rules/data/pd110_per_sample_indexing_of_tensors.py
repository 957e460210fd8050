"""PD110: rows of tensors that lie in memory are fetched one at a time."""

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
from lightning_perf.rules.wording import duration, percent

# One call that gathers rows: some tens of microseconds, and the bytes at a rate that every memory reaches.
LOOKUP_S = 100e-6
GATHER_BYTES_PER_S = 1e9
# A sampler's own work stays, and what it saves is not measured before it is tried.
LOW_PART = 0.5

DOCS = """\
## What it measures
Whether samples are rows of tensors in memory (as of a `TensorDataset`), fetched one at a time while the training waits,
and what a batch of them costs against one look-up of all its rows.

## Why it costs
Indexing a tensor costs some microseconds, whatever it gives; a batch of 256 samples of two fields pays it 512 times,
and collating stacks what was one tensor before.

## Example
```python
DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True)  # 512 look-ups and two stacks a batch
```

## Prescription
Let the sampler give lists of indices, so that the dataset is asked for whole batches. Worker processes would only add
the cost of moving them.

## When it is wrong
Where each row is changed before it is returned, the change has to work on a whole batch as well.

## Sources
The documentation of `torch.utils.data` on disabling automatic batching.
"""


def check(session: Session) -> Finding | None:
    """Compares the rows of a batch, one by one, with one look-up."""
    feeding = feeding_of(session)
    probe = feeding.probe
    if not indexes_rows(probe) or feeding.share < MIN_WAIT_SHARE:
        return None
    if is_waiting(probe) or is_transport_costly(feeding):
        return None  # PD106, PD109
    lookup_s = LOOKUP_S + (probe.batch_bytes or 0) / GATHER_BYTES_PER_S
    saved_s = max(0.0, feeding.wait_s - lookup_s)
    if saved_s <= 0:
        return None
    batch_size = probe.batch_size or 1
    return timed_finding(
        feeding.stage,
        summary=(
            f"{percent(feeding.share)} of the time waits for data: tensors in memory are indexed sample by sample. "
            f"{batch_size} rows one at a time take {duration(feeding.batch_s)}; one look-up of all takes about "
            f"{duration(lookup_s)}."
        ),
        evidence=(
            wait_evidence(feeding),
            fact("time to make a batch row by row", feeding.batch_s, "s"),
            fact("one look-up of as many bytes, about", lookup_s, "s"),
            fact("num_workers", feeding.plan.n_now),
        ),
        prescriptions=(
            fix(
                "fetch whole batches: a BatchSampler as sampler and batch_size=None",
                "minutes",
                code=(
                    f"sampler = BatchSampler(RandomSampler(dataset), batch_size={batch_size}, drop_last=False)\n"
                    "DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=0)"
                ),
            ),
        ),
        claims={"data_wait": feeding.stage.n_steps * saved_s},
        low_s=LOW_PART * feeding.stage.n_steps * saved_s,
        method="probed",
        basis="from half of what a look-up of the whole batch would save to all of it",
        confidence="high" if feeding.plan.n_now == 0 else "medium",
    )


RULE = Rule(
    code="PD110", name="per-sample-indexing-of-tensors", category="data", docs=DOCS, check=check, explains=("PD101",)
)
