"""PD201: batches are copied to the device from memory that the driver has to copy once more."""

from __future__ import annotations

from lightning_perf.records import Copies, Finding, Prescription, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import Rule
from lightning_perf.rules.trace_signals import device_reading_of, path_s, share_evidence, trace_finding, without
from lightning_perf.rules.wording import percent, place

# The lecture calls a copy of 23 ms in a step a bottleneck that pinning mends, and counts 1.1x for it; below 3 % of
# the step that is not to be had.
MIN_SHARE = 0.03

DOCS = """\
## What it measures
In a profiler window, the seconds in which copies from pageable memory ran, no kernel did, and the step did not wait for
the host, as a share of the time. How many copies there are does not count: thousands of small ones may cost nothing.

## Why it costs
The device can only read memory that is pinned. A pageable copy goes through a pinned buffer of the driver, the host
waits meanwhile, and neither kernels nor other copies run beside it.

## Example
```python
DataLoader(dataset, batch_size=512)  # pin_memory=False: every batch is pageable
```

## Prescription
`pin_memory=True` in the loader; Lightning then copies without blocking. Tensors that the step makes on the host are
better made on the device.

## When it is wrong
Pinning is itself a copy on the host: where one core does everything, it may only move the cost. Very large pinned
batches can exhaust memory that cannot be swapped.

## Sources
The profiling lecture (pin_memory and non_blocking, 1.1x); a pair of benchmark traces that copy the same bytes: 67.5 ms
a step pageable, 30.8 ms pinned.
"""


def check(session: Session) -> Finding | None:
    """Compare the time of copies from pageable memory without a kernel with the threshold."""
    reading, _ = device_reading_of(session)
    copies = reading.trace.copies
    exposed_s = path_s(reading.trace, "pageable_copy")
    if copies is None or reading.share(exposed_s) < MIN_SHARE:
        return None
    gone = without(reading, "pageable_copy")
    is_pinned = any(loader.pin_memory for loader in session.settings.loaders if loader.stage == "train")
    return trace_finding(
        reading,
        summary=(
            f"The device only copies from pageable memory {percent(reading.share(exposed_s))} of the time. "
            f"{copies.h2d_pageable_n} copies in the trace{_where(copies)}."
        ),
        evidence=(
            share_evidence(reading, "copying from pageable memory while no kernel ran", exposed_s, MIN_SHARE),
            fact("copies from pageable memory", copies.h2d_pageable_n, "count"),
            fact("time of these copies", copies.h2d_pageable_s, "s", n=copies.h2d_pageable_n),
        ),
        prescriptions=(_make_on_device(),) if is_pinned else (_pin(),),
        low_s=gone[1] if gone else 0.0,
        high_s=min(exposed_s, gone[2]) if gone else exposed_s,
        method="timed",
        basis="at most the copies, if they ran beside kernels",
    )


def _where(copies: Copies) -> str:
    sites = [site for site in copies.sites if site.is_pageable and site.direction == "h2d"]
    return f", most by {place(sites[0].function, sites[0].site)}" if sites else ""


def _pin() -> Prescription:
    return fix(
        "set pin_memory=True (now False) on the training loader",
        "one line",
        treatment="loader-pin-memory",
        loader_args={"pin_memory": True},
        code="DataLoader(..., pin_memory=True)",
    )


def _make_on_device() -> Prescription:
    return fix(
        "create these tensors on the device: the loader already pins its batches",
        "minutes",
        code="torch.zeros(n, device=self.device)  # instead of torch.zeros(n).to(self.device)",
    )


RULE = Rule(code="PD201", name="pageable-copies", category="transfer", docs=DOCS, check=check)
