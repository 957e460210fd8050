"""PD404: the allocator holds far more than tensors use."""

from __future__ import annotations

from lightning_perf.records import Evidence, Finding, Session
from lightning_perf.rules.memory_signals import EXPANDABLE_SEGMENTS, device_memory_of, is_tight
from lightning_perf.rules.parts import fact, unsigned_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.wording import size_text

# From half as much again the cache is more than rounding and reuse across phases explain; TraceML warns at twice.
MIN_RATIO = 1.5
# Free parts of blocks in use, which cannot be given back: a quarter of all that is held is no rounding either.
MIN_SPLIT_FRACTION = 0.25
# Below this much it does not matter on any device that trains.
MIN_EXCESS_BYTES = 512 * 2**20


@rule("PD404", "fragmented")
def check(session: Session) -> Finding | None:
    """Compare reserved with allocated memory."""
    device = device_memory_of(session)
    excess_bytes = device.peak_reserved_bytes - device.peak_allocated_bytes
    split_bytes = device.inactive_split_bytes or 0
    is_known = device.inactive_split_bytes is not None
    ratio = device.peak_reserved_bytes / max(1, device.peak_allocated_bytes)
    split_fraction = split_bytes / device.peak_reserved_bytes
    if max(excess_bytes, split_bytes) < MIN_EXCESS_BYTES:
        return None
    if ratio < MIN_RATIO and split_fraction < MIN_SPLIT_FRACTION:
        return None
    return unsigned_finding(
        severity="medium" if is_tight(session) else "low",
        summary=(
            f"The allocator reserves {size_text(device.peak_reserved_bytes)} of {device.device} for tensors of "
            f"{size_text(device.peak_allocated_bytes)}: its memory is {'' if is_known else 'likely '}fragmented."
        ),
        evidence=(
            fact("peak reserved ÷ peak allocated", ratio, "ratio", MIN_RATIO),
            *((_split_evidence(split_fraction),) if is_known else ()),
        ),
        prescriptions=(EXPANDABLE_SEGMENTS,),
        confidence="medium",
    )


def _split_evidence(fraction: float) -> Evidence:
    return fact("free parts of used blocks ÷ reserved memory", fraction, "fraction", MIN_SPLIT_FRACTION)
