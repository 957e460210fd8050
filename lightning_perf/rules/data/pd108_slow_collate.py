"""PD108: putting samples together takes much of making a batch."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import (
    MIN_WAIT_SHARE,
    costliest,
    function_evidence,
    indexes_rows,
    is_transport_costly,
    place,
    sample_share,
    wait_evidence,
)
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.wording import duration, percent

# The project's catalogue: of the time to make a batch.
MIN_COLLATE_SHARE = 0.30
# What a collate that stacks into one tensor saves at least where it replaces one that does not.
FASTER = 0.5

DOCS = """\
## What it measures
The loader probe times `collate_fn` apart from the samples. This rule fires where the training waits for data and
collate takes 30 % or more of making a batch.

## Why it costs
Collate runs once a batch in the worker (in the training process without workers), one sample after the other. Python
loops in it, padding element by element, and fields by the dozen cost as much there as in a transform, and are easily
overlooked.

## Example
```python
def collate(samples):
    return torch.tensor([[float(x) for x in sample] for sample in samples])  # element by element
```

## Prescription
Stack tensors or arrays with one call, pad with `torch.nn.utils.rnn.pad_sequence`, and do the work of single samples in
`__getitem__`. Where torch's own collate takes the time, there are too many small fields: pack them into one tensor.

## When it is wrong
A collate that also does the work of samples (tokenising a batch at once) may be the fastest place for it; then its
share is large because the samples cost nothing.

## Sources
The documentation of `torch.utils.data` on collate functions; the project's catalogue for 30 %.
"""


def check(session: Session) -> Finding | None:
    """Compares collate with the whole batch."""
    feeding = feeding_of(session)
    probe, plan = feeding.probe, feeding.plan
    if (
        feeding.share < MIN_WAIT_SHARE
        or plan.is_too_cheap
        or plan.cost_more
        or indexes_rows(probe)
        or is_transport_costly(feeding)
    ):
        return None
    if probe.collate is None:
        raise Skip(probe.missing.get("collate", "collate was not timed"))
    share = 1.0 - sample_share(probe)
    if share < MIN_COLLATE_SHARE:
        return None
    function = costliest(probe, "collate")
    who = place(function) if function is not None else feeding.loader.collate or "the collate function"
    is_own = function.is_users if function is not None else feeding.loader.collate != "default_collate"
    return timed_finding(
        feeding.stage,
        summary=(
            f"{percent(feeding.share)} of the time waits for data, and collating in {who} takes {percent(share)} of "
            f"making a batch. It takes {duration(probe.collate.p50_s)} each time."
        ),
        evidence=(
            wait_evidence(feeding),
            fact("collate's share of making a batch", share, "fraction", MIN_COLLATE_SHARE, probe.collate.n),
            fact("time of a collate", probe.collate.p50_s, "s", n=probe.collate.n),
            *function_evidence(probe, "collate"),
        ),
        prescriptions=(
            fix(
                (
                    "stack with one call instead of looping over samples"
                    if is_own
                    else f"pack the {probe.n_tensors or 'many'} fields of a sample into few tensors"
                ),
                "minutes",
                code="def collate(samples):\n    return torch.stack(samples)  # or pad_sequence",
            ),
        ),
        claims={"data_wait": feeding.saved_s(share)},
        low_s=feeding.saved_s(FASTER * share),
        basis="from a collate twice as fast to one that costs nothing; with the workers in use",
        confidence="medium" if feeding.is_predicted else "high",
        method="probed",
    )


RULE = Rule(
    code="PD108", name="slow-collate", category="data", docs=DOCS, check=check, explains=("PD101", "PD102", "PD107")
)
