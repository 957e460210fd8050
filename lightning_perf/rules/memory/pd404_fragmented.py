"""PD404: the allocator reserves far more memory than tensors use."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding
from lightning_perf.rules.memory_signals import EXPANDABLE_SEGMENTS, device_memory_of, is_tight
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import FRAGMENTED_MIN_BYTES, FRAGMENTED_RATIO, SPLIT_MIN_FRACTION
from lightning_perf.rules.wording import size_text


@rule("PD404", "fragmented")
def check(session: Session) -> Finding | None:
    device = device_memory_of(session)
    excess_bytes = device.peak_reserved_bytes - device.peak_allocated_bytes
    split_bytes = device.inactive_split_bytes or 0
    is_known = device.inactive_split_bytes is not None
    ratio = device.peak_reserved_bytes / max(1, device.peak_allocated_bytes)
    split_fraction = split_bytes / device.peak_reserved_bytes
    if max(excess_bytes, split_bytes) < FRAGMENTED_MIN_BYTES:
        return None
    if ratio < FRAGMENTED_RATIO and split_fraction < SPLIT_MIN_FRACTION:
        return None
    return make_finding(
        severity="medium" if is_tight(session) else "low",
        summary=(
            f"The allocator reserves {size_text(device.peak_reserved_bytes)} of {device.device} for tensors of "
            f"{size_text(device.peak_allocated_bytes)}: its memory is {'' if is_known else 'likely '}fragmented."
        ),
        evidence=(
            fact("peak reserved ÷ peak allocated", ratio, "ratio", FRAGMENTED_RATIO),
            fact("free parts of used blocks ÷ reserved memory", split_fraction, "fraction", SPLIT_MIN_FRACTION)
            if is_known
            else None,
        ),
        prescriptions=EXPANDABLE_SEGMENTS,
        confidence="medium",
    )
