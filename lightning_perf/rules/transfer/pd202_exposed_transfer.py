"""PD202: the device waits while its next batch is copied, though copies could run beside kernels."""

from __future__ import annotations

from lightning_perf.records import Finding, Session
from lightning_perf.rules.parts import fact, fix
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import NARROWING_PART, TRACE_MIN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent


@rule("PD202", "exposed-transfer")
def check(session: Session) -> Finding | None:
    """Compare the time of copies from pinned memory without a kernel with the threshold."""
    reading, device = device_reading_of(session)
    copies = reading.trace.copies
    if copies is None:
        return None
    exposed_s = reading.path_s("transfer")
    if reading.share(exposed_s) < TRACE_MIN_SHARE:
        return None
    overlap_s = min(exposed_s, device.compute_s)
    smaller_s = NARROWING_PART * exposed_s
    smaller = fix(
        "copy fewer bytes: send uint8 (or the stored dtype) and convert on the device",
        "minutes",
        code="def on_after_batch_transfer(self, batch, dataloader_idx):\n    return batch.float() / 255",
    )
    prefetch = fix(
        "copy the next batch on a side stream while this one is computed",
        "hours",
        code="with torch.cuda.stream(side):\n    upcoming = batch.to(device, non_blocking=True)",
    )
    can_hide = overlap_s > smaller_s
    speed = copies.h2d_bytes / copies.h2d_s if copies.h2d_bytes and copies.h2d_s > 0 else None
    return reading.finding(
        summary=(
            f"The device only copies from pinned memory {percent(reading.share(exposed_s))} of the time: "
            f"{copies.h2d_n} copies in the trace without a kernel beside them."
        ),
        evidence=(
            reading.evidence("copying from pinned memory while no kernel ran", exposed_s, TRACE_MIN_SHARE),
            reading.evidence("kernels running, beside which copies could run", device.compute_s),
            *((fact("speed of the copies", speed, "bytes/s", n=copies.h2d_n),) if speed else ()),
        ),
        prescriptions=(prefetch, smaller) if can_hide else (smaller, prefetch),
        high_s=max(overlap_s, smaller_s),
        basis=(
            "at most the copies that would fit beside kernels"
            if can_hide
            else "at most three quarters of the copies, if 32-bit numbers were sent as bytes"
        ),
    )
