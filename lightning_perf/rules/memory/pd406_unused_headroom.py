"""PD406: most of the device's memory is not used."""

import statistics

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, fix, make_finding, optional_fact
from lightning_perf.rules.memory_signals import capacity_fraction, device_memory_of, larger_batch_text
from lightning_perf.rules.rule import Skip, rule
from lightning_perf.rules.step_signals import UNREAD_BATCH, is_batch_unread
from lightning_perf.rules.thresholds import HEADROOM_MAX_FRACTION, UNDERUSED_MAX_BUSY
from lightning_perf.rules.wording import percent


@rule("PD406", "unused-headroom")
def check(session: Session) -> Finding | None:
    device = device_memory_of(session)
    if session.memory.oom is not None:
        return None  # PD408 recommends a smaller batch
    if is_batch_unread(session):
        raise Skip(UNREAD_BATCH)
    fraction = capacity_fraction(device)
    steps = [step for window in session.windows if window.trace is not None for step in window.trace.steps]
    busy = [step.busy_fraction for step in steps if step.busy_fraction is not None]
    median = statistics.median(busy) if busy else None
    is_idle = median is not None and median < UNDERUSED_MAX_BUSY
    if fraction >= HEADROOM_MAX_FRACTION or (busy and not is_idle):
        return None
    return make_finding(
        severity="low" if is_idle else "info",
        summary=f"{device.device} uses {percent(fraction)} of its memory at its peak.",
        evidence=(
            fact("peak reserved memory ÷ device memory", fraction, "fraction", HEADROOM_MAX_FRACTION),
            optional_fact("device busy in profiled steps", median, "fraction", UNDERUSED_MAX_BUSY, len(busy)),
        ),
        prescriptions=fix(
            f"use a larger batch{larger_batch_text(session)}", "minutes", "semantics", treatment="batch-size"
        ),
        confidence="medium" if is_idle else "low",
    )
