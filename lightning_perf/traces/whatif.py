"""Predict the step time without one of its causes."""

from typing import Final

from lightning_perf.records import TraceRecord, WhatIf

_MEANING: Final = {
    "loader": "waiting for data while the device was idle",
    "sync": "the device idle because the host had waited for it",
    "pageable_copy": "copies from pageable memory while no kernel ran, and the device idle after them",
    "transfer": "copies to the device while no kernel ran",
    "device_to_host": "copies from the device while no kernel ran",
    "allocator": "requesting memory from the driver while the device was idle",
    "communication": "collectives while no other kernel ran",
    "launch": "the device idle because the host launched kernels late",
}


def predict(record: TraceRecord) -> tuple[WhatIf, ...]:
    """Predict the step time without each cause.

    T is the mean step, D the time of any stream working in it, H the host's time without waiting, E the time exclusive
    to the cause. The step becomes no shorter than max(D, H, T − E), because it takes the longer of host and device and
    because only exclusive time can be saved. The upper end is T: a trace does not show how much of the cause a fix
    removes, or which wait follows. On a trace without device work D is 0 and E is the host's time in the cause.
    """
    n = max(len(record.steps), 1)
    windows = record.windows
    if not windows or not record.span_s:
        return ()
    step_s = record.span_s / n
    device_s = sum(window.device_busy_s or 0.0 for window in windows) / n
    host_s = sum(window.host_needed_s or 0.0 for window in windows) / n
    predictions = []
    for cause, claim_s in _claims(record).items():
        if claim_s <= 0:
            continue
        share = min(claim_s / n, step_s)
        # These causes slow the host itself, so its time without them is unknown.
        needs = device_s if cause in ("launch", "allocator") else max(device_s, min(host_s, step_s - share))
        # Time that copies or collectives alone keep the device busy goes away with them.
        if cause in ("pageable_copy", "transfer", "device_to_host", "communication"):
            needs = 0.0
        low = min(max(needs, step_s - share), step_s)
        meaning, needed = _MEANING[cause], f"; the device needs {device_s * 1e3:.1f} ms"
        if record.device is None:
            meaning, needed = meaning.partition(" while ")[0], ""
        predictions.append(
            WhatIf(
                cause=cause, step_s=step_s, low_s=low, high_s=step_s, claim_s=claim_s,
                basis=f"{meaning}: {claim_s / n * 1e3:.1f} ms of a {step_s * 1e3:.1f} ms step{needed}",
            )
        )  # fmt: skip
    return tuple(sorted(predictions, key=lambda each: -each.claim_s))


def _claims(record: TraceRecord) -> dict[str, float]:
    """Return the seconds of the analyzed span that are exclusive to each cause."""
    causes = record.critical_path.causes if record.critical_path else {}
    if record.device is None:
        causes = {cause: causes.get(cause, 0.0) for cause in ("loader", "communication")}
    joined = {"launch": ("launch", "between"), "sync": ("sync", "sync_communication")}
    return {cause: sum(causes.get(part, 0.0) for part in joined.get(cause, (cause,))) for cause in _MEANING}
