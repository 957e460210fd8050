"""PD407: the allocator flushed its cache to satisfy requests."""

from lightning_perf.records import Finding, Session
from lightning_perf.rules.findings import fact, make_finding
from lightning_perf.rules.memory_signals import EXPANDABLE_SEGMENTS, device_memory_of, smaller_batches
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.wording import called


@rule("PD407", "allocation-retries")
def check(session: Session) -> Finding | None:
    device = device_memory_of(session)
    n = required(device.alloc_retries, f"the allocator of {device.device} does not count its retries")
    if n == 0:
        return None
    return make_finding(
        severity="medium",
        summary=(
            f"The allocator of {device.device} flushed its cache {called(n)} to allocate memory, "
            f"{'and waited' if n == 1 else 'each time waiting'} for the device."
        ),
        evidence=(
            fact("allocation retries", n, "count", 0),
            fact("peak reserved memory", device.peak_reserved_bytes, "bytes"),
        ),
        prescriptions=(*smaller_batches(session), EXPANDABLE_SEGMENTS),
    )
