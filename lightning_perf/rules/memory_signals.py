"""What the rules on memory read from a session, each with the reason to skip where it is missing."""

from __future__ import annotations

from lightning_perf.records import Breakdown, DeviceMemory, Evidence, Growth, Prescription, Session
from lightning_perf.stats.leak import LEAK_BYTES_PER_STEP

from .rule import Skip

NEAR_CAPACITY_FRACTION = 0.92
FULL_FRACTION = 0.97
"""Of the device: TraceML's warning and critical states of reserved memory."""

MIN_UNNAMED_RISE_BYTES = 64 * 2**20
"""Resident memory is a high-water mark: as tensors of uneven size come and go it climbs for hundreds of steps, ever
more slowly. What the heap has handed out climbs as long as a library's cache for shapes of input fills up. Where
nothing was seen to grow, the climb itself must have come to this much."""

HOST_PLACES = ("host", "heap")
"""Two views of one memory: what is resident, and what the C heap has handed out. A leak that fills freed room of the
heap shows in the second alone; what does not come from the heap (small Python objects, mappings) in the first alone."""

MIN_LEAK_STEPS = 50
"""Fewer steps are warm-up and chance."""


def device_memory_of(session: Session) -> DeviceMemory:
    """The device whose peak is nearest to its capacity.

    Raises:
        Skip: No device's memory was read.
    """
    devices = [d for d in session.memory.devices if d.peak_reserved_bytes > 0]
    if not devices:
        raise Skip(session.missing.get("memory.devices", session.missing.get("memory", "no device memory was read")))
    return max(devices, key=lambda d: d.peak_reserved_bytes / (d.total_bytes or d.peak_reserved_bytes))


def capacity_fraction(device: DeviceMemory) -> float:
    """Peak of reserved memory ÷ the device's memory.

    Raises:
        Skip: The device does not tell how much it has.
    """
    if not device.total_bytes:
        raise Skip(f"{device.device} does not tell how much memory it has")
    return device.peak_reserved_bytes / device.total_bytes


def breakdown_of(session: Session) -> Breakdown:
    """What memory holds.

    Raises:
        Skip: It was not looked at.
    """
    if session.memory.breakdown is None:
        raise Skip(session.missing.get("memory", "what memory holds was not looked at"))
    return session.memory.breakdown


def whole_of(breakdown: Breakdown) -> int:
    """All that memory holds: the peak where there is one, else the sum of the parts."""
    return breakdown.peak_bytes or breakdown.parts_bytes


def is_tight(session: Session) -> bool:
    """Whether memory is what limits the run: a peak near the capacity, retries, or an end for want of memory."""
    if session.memory.oom is not None:
        return True
    devices = session.memory.devices
    return any(
        (d.alloc_retries or 0) > 0
        or (bool(d.total_bytes) and d.peak_reserved_bytes >= NEAR_CAPACITY_FRACTION * (d.total_bytes or 0))
        for d in devices
    )


def is_leak(growth: Growth) -> bool:
    """Whether memory climbs at the same point of the step, beyond chance and by as much as matters."""
    rise_bytes = growth.bytes_per_step * (growth.last_step - growth.first_step)
    is_device = growth.where not in (*HOST_PLACES, "workers")  # its allocator counts tensors, and nothing else
    is_named = growth.where in HOST_PLACES and bool(growth.suspects)
    return (
        (is_device or is_named or rise_bytes >= MIN_UNNAMED_RISE_BYTES)
        and growth.is_steady
        and growth.last_step - growth.first_step >= MIN_LEAK_STEPS
        and growth.low_bytes_per_step > 0
        and growth.bytes_per_step >= LEAK_BYTES_PER_STEP
    )


def growth_evidence(growth: Growth) -> tuple[Evidence, ...]:
    """What a trend rests on."""
    return (
        Evidence(
            metric="growth in a thousand steps",
            value=1000 * growth.bytes_per_step,
            unit="bytes",
            threshold=1000 * LEAK_BYTES_PER_STEP,
            n=growth.n,
        ),
        Evidence(metric="lower end of its 95 % interval", value=1000 * growth.low_bytes_per_step, unit="bytes"),
        Evidence(metric="steps watched", value=growth.last_step - growth.first_step, unit="count"),
    )


CHECKPOINTING = Prescription(
    treatment="activation-checkpointing",
    summary="checkpoint activations: 20 to 30 % slower for half of them or less",
    safety="exact",
    effort="minutes",
    code="x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)",
)
BF16 = Prescription(
    treatment="precision-bf16",
    summary="train in bf16-mixed: activations take half",
    safety="numerics",
    effort="one line",
    trainer_flags={"precision": "bf16-mixed"},
    code='Trainer(..., precision="bf16-mixed")',
)
EXPANDABLE_SEGMENTS = Prescription(
    treatment="expandable-segments",
    summary="let the allocator grow its segments, set before the process starts",
    safety="exact",
    effort="one line",
    code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
)


def bf16_of(session: Session) -> tuple[Prescription, ...]:
    """Half-precision activations; empty where the run has them already."""
    return () if "16" in str(session.settings.trainer.precision) else (BF16,)


def smaller_optimizer(session: Session) -> Prescription:
    """Less room for the optimizer's states: one rank has nothing to shard over, and some strategies shard already."""
    strategy = (session.settings.trainer.strategy or "").lower()
    is_alone = session.run.world_size == 1 or any(name in strategy for name in ("fsdp", "deepspeed", "modelparallel"))
    return Prescription(
        treatment="",
        summary="use an 8-bit optimizer" + ("" if is_alone else ", or shard its states over ranks with FSDP"),
        safety="numerics",
        effort="minutes",
        code="bitsandbytes.optim.AdamW8bit(self.parameters())" if is_alone else 'Trainer(..., strategy="fsdp")',
    )


def fewer_batches_ahead(session: Session) -> Prescription | None:
    """Half of the workers, each at most two batches ahead; None where no loader has workers."""
    loaders = [one for one in session.settings.loaders if one.num_workers]
    if not loaders:
        return None
    most = max(loaders, key=lambda one: (one.num_workers or 0) * (one.prefetch_factor or 2))
    n, ahead = most.num_workers or 1, most.prefetch_factor or 2
    asked = f"num_workers={n // 2}, prefetch_factor={min(ahead, 2)}" if n > 1 else "num_workers=1, prefetch_factor=1"
    if n == 1 and ahead == 1:
        asked = "num_workers=0"
    return Prescription(
        treatment="",
        summary="keep fewer batches ahead: each worker holds some of its own",
        safety="exact",
        effort="one line",
        code=f"DataLoader(..., {asked})",
    )


def smaller_batch(session: Session, n_samples: int | None) -> Prescription:
    """A smaller batch with as much accumulation.

    Args:
        session: Whose headroom tells what should fit, where it was looked for, and whose accumulation is gone on from.
        n_samples: The batch size in use; None when not known.
    """
    headroom = session.memory.headroom
    fits = headroom.largest_batch if headroom is not None else None
    if n_samples == 1:
        return Prescription(
            treatment="",
            summary="use smaller samples: a batch holds one of them already",
            safety="semantics",
            effort="hours",
        )
    # So many parts that each of them fits, and that together they are the batch of before.
    parts = -(-n_samples // fits) if fits and n_samples and 0 < fits < n_samples else 2
    half = f"a batch of {max(1, n_samples // parts)} instead of {n_samples}" if n_samples else "half the batch"
    accumulated = parts * (session.settings.trainer.accumulate_grad_batches or 1)
    return Prescription(
        treatment="",
        summary=f"use {half} and accumulate {accumulated} of them",
        safety="semantics",
        effort="one line",
        trainer_flags={"accumulate_grad_batches": accumulated},
        code=f"Trainer(..., accumulate_grad_batches={accumulated})",
    )


def larger_batch(session: Session) -> str:
    """Up to which size a batch should fit, as ``", up to 512"``; empty where that is not known to be more than now."""
    headroom = session.memory.headroom
    if headroom is None or not headroom.largest_batch or headroom.largest_batch <= (headroom.n_samples or 0):
        return ""
    return f", up to {headroom.largest_batch:,}"
