"""PD108: collating takes much of making a batch."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import (
    MIN_WAIT_SHARE,
    blamed,
    costliest,
    function_evidence,
    function_place,
    indexes_rows,
    is_transport_costly,
    sample_share,
    wait_evidence,
)
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.wording import duration, percent, spent_waiting

# The project's catalogue: of the time to make a batch.
MIN_COLLATE_SHARE = 0.30

DOCS = """\
## What it measures
The loader probe times `collate_fn` separately from the samples. This rule fires if training waits for data and
collating takes 30 % or more of making a batch.

## Why it costs
Collating runs once per batch in the worker (without workers, in the training process), one sample after the other.
Python loops, padding element by element and dozens of fields cost as much there as in a transform.

## Example
```python
def collate(samples):
    return torch.tensor([[float(x) for x in sample] for sample in samples])  # element by element
```

## Prescription
Stack tensors or arrays with one call, pad with `torch.nn.utils.rnn.pad_sequence`, and move work on single samples to
`__getitem__`. If torch's own collate takes the time, there are too many small fields: pack them into one tensor. The
upper end of the speedup is that without the function; what a faster one saves is not known before.

## When it is wrong
A collate that also does the work of samples (tokenising a batch at once) may be the fastest place for it; then
its share is large because the samples cost nothing.

## Sources
The documentation of `torch.utils.data` on collate functions; the project's catalogue for 30 %.
"""


def check(session: Session) -> Finding | None:
    """Compare collating with making the whole batch."""
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
    who = function_place(function) if function is not None else feeding.loader.collate or "the collate function"
    is_own = function.is_users if function is not None else feeding.loader.collate != "default_collate"
    return timed_finding(
        feeding.stage,
        summary=(
            f"{spent_waiting(feeding.share)}; collating in {who} takes "
            f"{percent(share)} of making a batch, {duration(probe.collate.p50_s)} per batch."
        ),
        evidence=(
            wait_evidence(feeding),
            fact("collate's share of making a batch", share, "fraction", MIN_COLLATE_SHARE, probe.collate.n),
            fact("collating time per batch", probe.collate.p50_s, "s", n=probe.collate.n),
            *function_evidence(probe, "collate"),
        ),
        prescriptions=(
            fix(
                (
                    "stack samples with one call instead of looping over them"
                    if is_own
                    else f"pack the {probe.n_tensors or 'many'} fields of a sample into few tensors"
                ),
                "minutes",
                code="def collate(samples):\n    return torch.stack(samples)  # or pad_sequence",
            ),
        ),
        # Of collating, only the function that the fix replaces goes away.
        claims={"data_wait": feeding.saved_s(share * (blamed(function) if function is not None else 1.0))},
        low_s=0.0,
        basis=f"at most the time of {who}; with the workers in use",
        confidence="medium" if feeding.is_predicted else "high",
    )


RULE = Rule(
    code="PD108", name="slow-collate", category="data", docs=DOCS, check=check, explains=("PD101", "PD102", "PD107")
)
