"""PD401: peak memory is close to the device's capacity."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding
from lightning_perf.rules.memory_signals import (
    capacity_fraction,
    checkpointing_of,
    device_memory_of,
    half_precision_of,
    smaller_batches,
)
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import FULL_FRACTION, NEAR_CAPACITY_FRACTION
from lightning_perf.rules.wording import percent


@rule("PD401", "near-capacity")
def check(session: Session) -> Finding | None:
    device = device_memory_of(session)
    fraction = capacity_fraction(device)
    if fraction < NEAR_CAPACITY_FRACTION:
        return None
    return make_finding(
        severity="high" if fraction >= FULL_FRACTION else "medium",
        summary=(
            f"{device.device} uses {percent(fraction)} of its memory at its peak. "
            "A slightly larger batch may end the run."
        ),
        evidence=(
            fact("peak reserved memory ÷ device memory", fraction, "fraction", NEAR_CAPACITY_FRACTION),
            fact("peak allocated memory", device.peak_allocated_bytes, "bytes"),
        ),
        prescriptions=(
            checkpointing_of(session) if session.run.stage == "fit" else None,
            half_precision_of(session),
            *smaller_batches(session),
        ),
    )
