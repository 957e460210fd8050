"""PD203: batches are at least twice as large as their values need."""

from lightning_perf.records import Finding, LoaderProbe, Prescription, Session, StageTimes
from lightning_perf.rules.findings import fact, fix, optional_fact, timed_finding
from lightning_perf.rules.loader_curve import probe_of, timed_steps_of
from lightning_perf.rules.rule import required, rule
from lightning_perf.rules.signals import is_cpu_run, phase_s, share_of
from lightning_perf.rules.thresholds import OVERSIZED_MIN_BYTES, OVERSIZED_MIN_RATIO
from lightning_perf.rules.wording import size_text


@rule("PD203", "oversized-batch", explains=("PD101", "PD109"))
def check(session: Session) -> Finding | None:
    probe = probe_of(session)
    n_bytes = required(probe.batch_bytes, probe.missing.get("batch_bytes", "the size of a batch is not known"))
    needed_bytes = _needed_bytes(probe)
    if n_bytes < OVERSIZED_MIN_BYTES or n_bytes < OVERSIZED_MIN_RATIO * needed_bytes:
        return None
    stage = timed_steps_of(session)
    ratio = n_bytes / max(1, needed_bytes)
    part = 1.0 - needed_bytes / n_bytes
    moved_s = probe.transport.p50_s if probe.transport is not None and probe.num_workers else 0.0
    wide = probe.bytes_by_dtype.get("float64", 0)
    why, advice = _why_and_advice(probe)
    return timed_finding(
        stage,
        summary=(
            f"A batch has {size_text(n_bytes)}, its values need {size_text(needed_bytes)} "
            f"({ratio:.1f} times less). {why}"
        ),
        evidence=(
            fact("bytes per batch", n_bytes, "bytes", OVERSIZED_MIN_BYTES),
            fact("bytes ÷ bytes that its values need", ratio, "ratio", OVERSIZED_MIN_RATIO),
            optional_fact("float64", wide or None, "bytes"),
            optional_fact("float values that fit one byte", probe.narrow_bytes or None, "bytes"),
        ),
        prescriptions=advice,
        claims={
            "transfer": part * _copy_s(session, stage),
            "data_wait": min(part * moved_s * stage.n_span_steps, phase_s(stage, "data_wait")),
        },
        basis="at most the same fraction of the time to move batches",
        confidence="high" if wide else "medium",  # the dtype is certain; whether all values fit a byte was sampled
    )


def _copy_s(session: Session, stage: StageTimes) -> float:
    """Return the seconds in which batches are copied to a device, without the user's hooks; 0 on the CPU."""
    hooks_s = stage.span_s * share_of(time for time in stage.named if time.phase == "transfer" and time.kind != "loop")
    return 0.0 if is_cpu_run(session) else max(0.0, phase_s(stage, "transfer") - hooks_s)


def _why_and_advice(probe: LoaderProbe) -> tuple[str, Prescription]:
    """Return why the batch is too large, as a sentence, and the recommendation."""
    wide, narrow = probe.bytes_by_dtype.get("float64", 0), probe.narrow_bytes or 0
    if not narrow:
        code = "torch.as_tensor(values, dtype=torch.float32)"
        return "It is float64.", fix("return float32 instead of float64", "minutes", "numerics", code=code)
    why = f"{'It is float64; part of its' if wide else 'Part of its float'} values fit into one byte."
    if narrow >= wide + probe.bytes_by_dtype.get("float32", 0):
        why = "All of its float values fit into one byte."
    return why, fix(
        f"return uint8{' (or float32)' if wide else ''} and convert on the device",
        "minutes",
        # Rounding float64 to float32 changes results; converting bytes later does not.
        "exact" if narrow >= wide else "numerics",
        code="def on_after_batch_transfer(self, batch, dataloader_idx):\n    return batch.float() / 255",
    )


def _needed_bytes(probe: LoaderProbe) -> int:
    n_bytes, wide, narrow = probe.batch_bytes or 0, probe.bytes_by_dtype.get("float64", 0), probe.narrow_bytes or 0
    narrow_single = min(narrow, probe.bytes_by_dtype.get("float32", 0))
    narrow_double = min(narrow - narrow_single, wide)
    saved = 0.75 * narrow_single + 0.875 * narrow_double + 0.5 * (wide - narrow_double)
    return max(0, round(n_bytes - saved))
