"""PD406: most of the device's memory is not used."""

from __future__ import annotations

import statistics

from lightning_perf.records import Finding, Session
from lightning_perf.rules.memory_signals import capacity_fraction, device_memory_of, larger_batch
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import HEADROOM_MAX_FRACTION, UNDERUSED_MAX_BUSY
from lightning_perf.rules.wording import percent


@rule("PD406", "unused-headroom")
def check(session: Session) -> Finding | None:
    """Compare the peak of reserved memory with the capacity, and check whether the device is idle."""
    device = device_memory_of(session)
    if session.memory.oom is not None:
        return None  # PD408 recommends a smaller batch
    fraction = capacity_fraction(device)
    steps = [step for window in session.windows if window.trace is not None for step in window.trace.steps]
    busy = [step.busy_fraction for step in steps if step.busy_fraction is not None]
    is_idle = bool(busy) and statistics.median(busy) < UNDERUSED_MAX_BUSY
    if fraction >= HEADROOM_MAX_FRACTION or (busy and not is_idle):
        return None
    fits = larger_batch(session)
    evidence = [fact("peak reserved memory ÷ device memory", fraction, "fraction", HEADROOM_MAX_FRACTION)]
    if busy:
        evidence.append(
            fact("device busy in profiled steps", statistics.median(busy), "fraction", UNDERUSED_MAX_BUSY, len(busy))
        )
    return unsigned_finding(
        severity="low" if is_idle else "info",
        summary=f"{device.device} uses {percent(fraction)} of its memory at its peak.",
        evidence=tuple(evidence),
        prescriptions=(fix(f"use a larger batch{fits}", "minutes", "semantics", treatment="batch-size"),),
        confidence="medium" if is_idle else "low",
    )
