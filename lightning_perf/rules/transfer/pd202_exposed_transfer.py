"""PD202: the device waits while its next batch is copied, although copies could overlap with kernels."""

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.findings import fix, optional_fact
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import NARROWING_PART, TRACE_MIN_SHARE
from lightning_perf.rules.trace_reading import device_reading_of
from lightning_perf.rules.wording import percent


@rule("PD202", "exposed-transfer")
def check(session: Session) -> Finding | None:
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
        "copy the next batch on a side stream during the current step",
        "hours",
        code="with torch.cuda.stream(side):\n    upcoming = batch.to(device, non_blocking=True)",
    )
    can_hide = overlap_s > smaller_s
    fixes: tuple[Prescription, ...] = (prefetch, smaller) if can_hide else (smaller, prefetch)
    what = "copies from pinned memory"
    if "h2d_pageable_n" in reading.trace.missing:
        what = "copies to the device"
        if not any(loader.pin_memory for loader in session.settings.loaders):
            fixes = (_PIN, *fixes)
    speed = copies.h2d_bytes / copies.h2d_s if copies.h2d_bytes and copies.h2d_s > 0 else None
    return reading.finding(
        summary=(
            f"{percent(reading.share(exposed_s))} of the time is exposed {what}. "
            f"The trace has {copies.h2d_n} copies to the device."
        ),
        evidence=(
            reading.evidence(f"{what} while no kernel ran", exposed_s, TRACE_MIN_SHARE),
            reading.evidence("kernels that copies could overlap with", device.compute_s),
            optional_fact("copy rate", speed, "bytes/s", n=copies.h2d_n),
        ),
        prescriptions=fixes,
        high_s=max(overlap_s, smaller_s),
        basis=(
            "at most the copies that kernels could hide"
            if can_hide
            else "at most three quarters of the copies, if fp32 values were sent as bytes"
        ),
    )


_PIN = fix("set pin_memory=True on the loader", "one line", code="DataLoader(..., pin_memory=True)")
