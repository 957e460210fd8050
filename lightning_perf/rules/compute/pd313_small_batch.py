"""PD313: the device idles for want of work, and its memory would hold more."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Prescription, Session
from lightning_perf.rules.memory_signals import capacity_fraction, device_memory_of, larger_batch
from lightning_perf.rules.model_signals import bound_of, counted
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.trace_signals import (
    device_reading_of,
    idle_limit_s,
    is_worth_saying,
    share_evidence,
    trace_finding,
)
from lightning_perf.rules.wording import percent

CODE = "PD313"
NAME = "small-batch"
CATEGORY = "compute"

# SageMaker Debugger's rule on batch size asks whether 95 % of the readings stay below 70 %; a window is surer than
# readings, and below 60 % the time won is worth the change.
MAX_BUSY_SHARE = 0.60
# Below half, a batch twice as large fits.
MAX_MEMORY_FRACTION = 0.5
# More idle time than this while waiting for data is starvation, which a larger batch does not mend.
MAX_STARVED_PART = 0.5

DOCS = """\
## What it measures
In a profiler window, how much of the time the device works; in the step whose arithmetic was counted, whether the
device's arithmetic, its memory or starting operators could explain the step's time; and how much memory is free.

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
    """Compares how busy the device is, what limits the counted step, and the memory in use with the thresholds."""
    reading, device = device_reading_of(session)
    trace = reading.trace
    busy = min(1.0, reading.share(device.busy_s))
    if busy >= MAX_BUSY_SHARE:
        return None
    fraction = capacity_fraction(device_memory_of(session))
    if fraction >= MAX_MEMORY_FRACTION:
        return None
    idle = trace.idle.host_wait_by_phase_s if trace.idle is not None else {}
    starved_s = idle.get("data_loading", 0.0)
    if starved_s > MAX_STARVED_PART * max(device.idle_s, 1e-12):
        return None
    bound = bound_of(session)
    if bound not in ("launch", "latency"):
        return None
    high_s = max(0.0, idle_limit_s(reading) - starved_s)
    if not is_worth_saying(reading, high_s):
        return None
    accumulated = session.settings.trainer.accumulate_grad_batches or 1
    fits = larger_batch(session)
    used = counted(session).utilisation
    return trace_finding(
        reading,
        code=CODE,
        name=NAME,
        category=CATEGORY,
        summary=(
            f"The device works for {percent(busy)} of the time, for want of work. Neither its arithmetic nor its "
            f"memory explains a step, and {percent(1 - fraction)} of its memory is free."
        ),
        evidence=(
            share_evidence(reading, "device busy", device.busy_s, MAX_BUSY_SHARE),
            Evidence(
                metric="peak of reserved memory, of the device",
                value=fraction,
                unit="fraction",
                threshold=MAX_MEMORY_FRACTION,
            ),
            Evidence(metric="a step is bound by", value=bound),
            *(
                (
                    Evidence(
                        metric=f"arithmetic, of the {used.measured_flops_per_s / 1e12:.3g} TFLOP/s measured",
                        value=used.measured_fraction,
                        unit="fraction",
                    ),
                )
                if used is not None and used.measured_fraction is not None and used.measured_flops_per_s is not None
                else ()
            ),
        ),
        prescriptions=(
            Prescription(
                treatment="batch-size",
                summary=(
                    f"use a larger batch{fits}"
                    + (f", and accumulate fewer than the {accumulated} of now" if accumulated > 1 else "")
                ),
                safety="semantics",
                effort="minutes",
            ),
        ),
        low_s=0.0,
        high_s=high_s,
        basis="at most the time in which the device idles without waiting for data",
        confidence="medium",
    )


RULE = Rule(code=CODE, name=NAME, category=CATEGORY, docs=DOCS, check=check)
