"""PD313: the batch is too small to keep the device busy, and a larger one would fit in memory."""

from lightning_perf.records import STEP_PHASES, DeviceActivity, Session
from lightning_perf.rules.findings import fact, fix
from lightning_perf.rules.memory_signals import capacity_fraction, device_memory_of, larger_batch_text
from lightning_perf.rules.replay_signals import Diagnosis, replay_rule
from lightning_perf.rules.rule import Skip
from lightning_perf.rules.signals import loaders_of, phase_s, steady_of
from lightning_perf.rules.step_signals import UNREAD_BATCH, bound_of, is_batch_unread
from lightning_perf.rules.thresholds import HEADROOM_MAX_FRACTION, SMALL_BATCH_MAX_BUSY, STARVED_MAX_PART
from lightning_perf.rules.trace_reading import Reading, device_reading_of
from lightning_perf.rules.wording import number_of, percent


@replay_rule("PD313", "small-batch")
def check(session: Session) -> Diagnosis | None:
    if is_batch_unread(session):
        raise Skip(UNREAD_BATCH)
    try:
        reading, device = device_reading_of(session)
    except Skip:
        if session.settings.trainer.accelerator == "cpu":
            return _on_cpu(session)
        raise
    return _on_device(session, reading, device)


def _on_cpu(session: Session) -> Diagnosis | None:
    """Return the diagnosis for accumulated gradients: fewer and larger batches change batch statistics only."""
    steady_of(session)
    n = session.settings.trainer.accumulate_grad_batches or 1
    size = next((loader.batch_size for loader in loaders_of(session, "train")), None)
    if n < 2 or n % 2:
        raise Skip("on a CPU, a larger batch changes the training unless an even number of batches is accumulated")
    if not size:
        raise Skip("the loader's batch size is not known")
    host, model = session.memory.host, session.settings.model
    if host is not None and host.limit_bytes and (host.used_bytes or 0) >= HEADROOM_MAX_FRACTION * host.limit_bytes:
        return None  # memory is why batches are accumulated
    has_batch_norm = model is not None and any("BatchNorm" in name for name in model.layers)
    return Diagnosis(
        f"Each optimizer step accumulates {n} batches of {number_of(size, 'sample')}",
        (fact("batches per optimizer step", n, "count"), fact("batch size", size, "count")),
        fix(
            f"set batch_size={2 * size} and accumulate_grad_batches={n // 2}, or go on in this direction",
            "one line",
            "semantics" if has_batch_norm else "numerics",
            code=f"DataLoader(..., batch_size={2 * size})\nTrainer(..., accumulate_grad_batches={n // 2})",
        ),
        "a batch twice as large runs these operators",
        replayed_as="batch=2",
        batch_part=0.5,
        unmeasured=None,
    )


def _on_device(session: Session, reading: Reading, device: DeviceActivity) -> Diagnosis | None:
    if session.memory.oom is not None:
        return None  # PD408 recommends a smaller batch
    busy = min(1.0, reading.share(device.busy_s))
    fraction = capacity_fraction(device_memory_of(session)) if busy < SMALL_BATCH_MAX_BUSY else 1.0
    if fraction >= HEADROOM_MAX_FRACTION:
        return None
    idle = reading.trace.idle.host_wait_by_phase_s if reading.trace.idle is not None else {}
    starved_s = idle.get("data_loading", 0.0)
    if starved_s > STARVED_MAX_PART * max(device.idle_s, 1e-12):
        return None
    bound = bound_of(session)
    if bound not in ("launch", "latency"):
        return None
    idle_s = max(0.0, reading.idle_limit_s - starved_s)
    if not reading.is_noticeable(idle_s):
        return None
    n = session.settings.trainer.accumulate_grad_batches or 1
    fewer = f", and accumulate fewer than {n} batches" if n > 1 else ""
    return Diagnosis(
        f"The device is busy {percent(busy)} of the time ({bound}-bound), and {percent(1 - fraction)} of "
        "its memory is free",
        (
            reading.evidence("device busy", device.busy_s, SMALL_BATCH_MAX_BUSY),
            fact("peak reserved memory ÷ device memory", fraction, "fraction", HEADROOM_MAX_FRACTION),
            fact("bound of the step", bound),
        ),
        fix(f"use a larger batch{larger_batch_text(session)}{fewer}", "minutes", "semantics", treatment="batch-size"),
        "a batch twice as large runs these operators",
        replayed_as="batch=2",
        most_s=idle_s * phase_s(reading.span, *STEP_PHASES) / reading.trace.span_s,
    )
