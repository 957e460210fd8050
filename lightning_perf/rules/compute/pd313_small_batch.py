"""PD313: the batch is too small to keep the device busy, and memory is free for a larger one."""

from __future__ import annotations

from lightning_perf.records import STEP_PHASES, Finding, Session
from lightning_perf.rules.memory_signals import capacity_fraction, device_memory_of, larger_batch
from lightning_perf.rules.model_signals import bound_of
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.replay_signals import Diagnosis, hypothesis_from, replayed_finding
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.signals import phase_s
from lightning_perf.rules.trace_signals import device_reading_of, idle_limit_s, is_worth_saying, share_evidence
from lightning_perf.rules.wording import percent

# SageMaker Debugger's rule on batch size asks whether 95 % of the readings stay below 70 %; a window is surer than
# readings, and below 60 % the time won is worth the change.
MAX_BUSY_SHARE = 0.60
# Below half, a batch twice as large fits.
MAX_MEMORY_FRACTION = 0.5
# With more idle time than this spent waiting for data, the loader is the cause, which a larger batch does not change.
MAX_STARVED_PART = 0.5

DOCS = """\
## What it measures
In a profiler window, how much of the time the device works; in the step whose arithmetic was counted, whether launches
or latency explain the step's time; and how much memory is free. The operators of one step are then replayed with a
batch twice as large, and timed per sample.

## Why it costs
Every operator costs the host the same, however few samples it works on. A batch that is too small leaves the device
waiting for the next operator, and each operator too small to fill it.

## Example
```python
DataLoader(dataset, batch_size=8)  # the device works for 35 % of a step, with 70 of 80 GiB free
```

## Prescription
A larger batch, with the learning rate adjusted to it; with accumulated gradients, fewer and larger micro-batches, which
leave the training as it is.

## When it is wrong
A larger batch changes the training itself. Where a model cannot use a larger one, fewer and larger operators
(`torch.compile`, CUDA graphs) win the same time.

## Sources
SageMaker Debugger's rule on batch size; the roofline model (Williams, Waterman, Patterson 2009).
"""


def check(session: Session) -> Finding | None:
    """Report an underused device unless a replay shows that a larger batch takes as long per sample."""
    return replayed_finding(session, _diagnosis(session))


def _diagnosis(session: Session) -> Diagnosis | None:
    reading, device = device_reading_of(session)
    if session.memory.oom is not None:
        return None  # PD408 recommends a smaller batch
    busy = min(1.0, reading.share(device.busy_s))
    fraction = capacity_fraction(device_memory_of(session)) if busy < MAX_BUSY_SHARE else 1.0
    if fraction >= MAX_MEMORY_FRACTION:
        return None
    idle = reading.trace.idle.host_wait_by_phase_s if reading.trace.idle is not None else {}
    starved_s = idle.get("data_loading", 0.0)
    if starved_s > MAX_STARVED_PART * max(device.idle_s, 1e-12) or bound_of(session) not in ("launch", "latency"):
        return None
    idle_s = max(0.0, idle_limit_s(reading) - starved_s)
    if not is_worth_saying(reading, idle_s):
        return None
    n = session.settings.trainer.accumulate_grad_batches or 1
    fewer = f", and accumulate fewer than {n} batches" if n > 1 else ""
    metric = "peak of reserved memory ÷ memory of the device"
    return Diagnosis(
        f"The device is busy {percent(busy)} of the time ({bound_of(session)}-bound), and {percent(1 - fraction)} of "
        "its memory is free",
        (
            share_evidence(reading, "device busy", device.busy_s, MAX_BUSY_SHARE),
            fact(metric, fraction, "fraction", MAX_MEMORY_FRACTION),
            fact("the step is bound by", bound_of(session)),
        ),
        fix(f"use a larger batch{larger_batch(session)}{fewer}", "minutes", "semantics", treatment="batch-size"),
        "a batch twice as large runs these operators",
        replayed_as="batch=2",
        most_s=idle_s * phase_s(reading.span, *STEP_PHASES) / reading.trace.span_s,
    )


RULE = Rule(
    code="PD313", name="small-batch", category="compute", docs=DOCS, check=check, hypothesis=hypothesis_from(_diagnosis)
)
