"""PD109: moving a batch from its worker to the training process takes much of fetching it."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.gain import timed_finding
from lightning_perf.rules.loader_curve import feeding_of
from lightning_perf.rules.loader_signals import (
    MIN_BYTES,
    MIN_OBJECTS,
    MIN_TENSORS,
    MIN_TRANSPORT_SHARE,
    MIN_WAIT_SHARE,
    transport_share,
    wait_evidence,
)
from lightning_perf.rules.machine_signals import told
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule, Skip
from lightning_perf.rules.signals import phase_s
from lightning_perf.rules.wording import duration, percent

# Tensors of shared memory are made by the worker and opened by the training process: about half of it each.
MAIN_PART = 0.5

DOCS = """\
## What it measures
The loader probe times how long a batch takes from the end of collating in a worker until the training process holds it:
pickling, shared memory, the queue, and rebuilding. This rule fires where the training waits for data, that takes 30 %
or more of fetching a batch, and the batch is made of what is costly to move: 16 tensors or more, a thousand Python
objects, or several megabytes. Lightning also looks through a batch piece by piece for what to move to the device, be it
the CPU: of many pieces that time counts for the upper end of the gain.

## Why it costs
Each tensor of a batch becomes a piece of shared memory of its own, whose descriptor is sent through a socket. The
training process opens them one by one, on its own time. Strings, numbers and lists are pickled object by object.

## Example
```python
def __getitem__(self, index):
    return {name: torch.tensor(value) for name, value in self.rows[index].items()}  # two hundred small tensors
```

## Prescription
Put fields of one kind into one tensor, in `collate_fn` or before; numbers as tensors rather than lists; float32 or
uint8 rather than float64. Without workers nothing is moved at all.

## When it is wrong
On a busy machine part of the time is queueing for a core. Batches that wait in the queue because the training is slower
are not counted: the probe asks for each batch before it is made.

## Sources
PyTorch's notes on multiprocessing and sharing strategies; the project's catalogue for 30 %.
"""


def check(session: Session) -> Finding | None:
    """Compares moving a batch with fetching it."""
    feeding = feeding_of(session)
    probe = feeding.probe
    if feeding.plan.n_now == 0 or feeding.share < MIN_WAIT_SHARE:
        return None
    if probe.transport is None:
        raise Skip(probe.missing.get("transport", "moving a batch was not timed"))
    share = transport_share(feeding)
    if share < MIN_TRANSPORT_SHARE:
        return None
    moved_s = probe.transport.p50_s
    what = _what(probe.n_tensors or 0, probe.n_objects or 0, probe.batch_bytes or 0)
    pack = fix(
        "pack the fields of a batch into few tensors, of no wider dtype than they need",
        "minutes",
        code="def collate(samples):\n    return torch.stack([torch.cat(list(sample.values())) for sample in samples])",
    )
    alone = fix(
        "set num_workers=0: batches are then not moved",
        "one line",
        treatment="loader-workers" if feeding.loader.is_plain else "",
        loader_args={"num_workers": 0, "persistent_workers": False} if feeding.loader.is_plain else {},
        code="DataLoader(..., num_workers=0)",
    )
    waited_s = feeding.stage.n_steps * feeding.wait_s
    is_in_pieces = (probe.n_tensors or 0) >= MIN_TENSORS or (probe.n_objects or 0) >= MIN_OBJECTS
    handed_on_s = phase_s(feeding.stage, "transfer") if is_in_pieces else 0.0
    plan = feeding.plan
    can_do_without = (
        plan.chosen is not None
        and plan.chosen.num_workers == 0
        and plan.chosen.step_s < feeding.stage.step_s.mean  # in which part of moving may be hidden
    )
    return timed_finding(
        feeding.stage,
        summary=(
            f"{percent(feeding.share)} of the time waits for data, and moving a batch out of its worker takes "
            f"{percent(share)} of fetching it. It is {what}, {duration(moved_s)} each time."
        ),
        evidence=(
            wait_evidence(feeding),
            fact("time to move a batch from a worker", moved_s, "s", n=probe.transport.n),
            fact("its share of a fetch", share, "fraction", MIN_TRANSPORT_SHARE),
            *told("tensors of a batch", probe.n_tensors, "count", MIN_TENSORS),
            *told("other objects of a batch", probe.n_objects, "count", MIN_OBJECTS),
            *told("bytes of a batch", probe.batch_bytes, "bytes", MIN_BYTES),
        ),
        prescriptions=(pack, alone) if can_do_without else (pack,),
        claims={"data_wait": min(waited_s, feeding.stage.n_steps * moved_s), "transfer": handed_on_s},
        low_s=min(waited_s, MAIN_PART * share * waited_s),
        method="probed",
        basis="from the training process's half of its share of the waiting to all of moving and handing on",
        confidence="medium",
    )


def _what(n_tensors: int, n_objects: int, n_bytes: int) -> str:
    if n_tensors >= MIN_TENSORS:
        return f"{n_tensors} tensors"
    return f"{n_objects} Python objects" if n_objects >= MIN_OBJECTS else f"{n_bytes / 2**20:.0f} MiB"


RULE = Rule(
    code="PD109",
    name="costly-worker-transport",
    category="data",
    docs=DOCS,
    check=check,
    explains=("PD101", "PD102", "PD103"),
)
