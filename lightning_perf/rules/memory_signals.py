"""Memory measurements and recommendations that rules use; functions raise Skip with the reason if one is missing."""

import math
from collections.abc import Iterator

from lightning_perf.records import Breakdown, DeviceMemory, Evidence, Growth, OutOfMemory, Prescription, Session
from lightning_perf.stats.leak import LEAK_BYTES_PER_STEP

from .findings import fact, fix
from .matrix_units import matrix_units, may_multiply_in_bf16, precision_fix
from .rule import Skip, required
from .signals import is_cpu_run
from .thresholds import DEFAULT_PREFETCH, LEAK_MIN_STEPS, NEAR_CAPACITY_FRACTION, UNNAMED_MIN_RISE_BYTES

HOST_PLACES = ("host", "heap")
"""Two measures of host memory: resident memory without the heap's free blocks, and memory allocated from the C heap,
which does not contain small Python objects and mappings."""


def device_memory_of(session: Session) -> DeviceMemory:
    """Return the device whose peak is nearest to its capacity, if known; raise Skip if no device's memory was read."""
    devices = [d for d in session.memory.devices if d.peak_reserved_bytes > 0]
    if not devices:
        raise Skip(session.missing.get("memory.devices", session.missing.get("memory", "no device memory was read")))
    return max(devices, key=lambda d: d.peak_reserved_bytes / (d.total_bytes or math.inf))


def capacity_fraction(device: DeviceMemory) -> float:
    """Return the peak of reserved memory ÷ the device's memory; raise Skip if the latter is not known."""
    if not device.total_bytes:
        raise Skip(f"the memory of {device.device} is not known")
    return device.peak_reserved_bytes / device.total_bytes


def breakdown_of(session: Session) -> Breakdown:
    """Return the breakdown of the memory in use; raise Skip if it was not measured."""
    reason = session.missing.get("memory", "the memory breakdown was not measured")
    return required(session.memory.breakdown, reason)


def memory_in_use(breakdown: Breakdown) -> int:
    """Return the bytes in use: the peak, or else the sum of the breakdown."""
    return breakdown.peak_bytes or breakdown.parts_bytes


def fraction_in_use(breakdown: Breakdown, n_bytes: int) -> float:
    """Return a part of the memory in use ÷ all of it; raise Skip if that is 0."""
    in_use = memory_in_use(breakdown)
    if in_use <= 0:
        raise Skip("no memory was counted")
    return n_bytes / in_use


def is_tight(session: Session) -> bool:
    """Return whether memory limits the run: a peak near the capacity, retries, or an out-of-memory error."""
    if session.memory.oom is not None:
        return True
    return any(
        d.alloc_retries or (d.total_bytes and d.peak_reserved_bytes >= NEAR_CAPACITY_FRACTION * d.total_bytes)
        for d in session.memory.devices
    )


def is_leak(growth: Growth) -> bool:
    """Return whether memory at the same point of each step grows significantly and by a relevant amount."""
    rise_bytes = growth.bytes_per_step * (growth.last_step - growth.first_step)
    is_device = growth.where not in (*HOST_PLACES, "workers")  # a device's allocator counts only tensors
    is_named = growth.where in HOST_PLACES and bool(growth.suspects)
    return (
        (is_device or is_named or rise_bytes >= UNNAMED_MIN_RISE_BYTES)
        and growth.is_steady
        and growth.last_step - growth.first_step >= LEAK_MIN_STEPS
        and growth.low_bytes_per_step > 0
        and growth.bytes_per_step >= LEAK_BYTES_PER_STEP
    )


def growth_evidence(growth: Growth) -> tuple[Evidence, ...]:
    """Return the evidence of a trend."""
    return (
        fact("growth per 1,000 steps", 1000 * growth.bytes_per_step, "bytes", 1000 * LEAK_BYTES_PER_STEP, growth.n),
        fact("lower end of its 95 % interval", 1000 * growth.low_bytes_per_step, "bytes"),
        fact("steps measured", growth.last_step - growth.first_step, "count"),
    )


EXPANDABLE_SEGMENTS = fix(
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: less fragmentation",
    "one line",
    treatment="expandable-segments",
    code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
)


SMALLER_SAMPLES = "use smaller samples: a batch already holds only one"


def checkpointing_of(session: Session) -> Prescription:
    """Return the recommendation of activation checkpointing, for FSDP as an argument of its strategy."""
    treatment, what = "activation-checkpointing", "activation checkpointing"
    code = "x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)"
    if "FSDP" in (session.settings.trainer.strategy or ""):
        treatment, what = "fsdp-checkpointing", "FSDP's activation checkpointing"
        code = "FSDPStrategy(activation_checkpointing_policy={Block})  # the class of your repeated blocks"
    summary = f"use {what}: activations need half the memory or less, steps take 20 to 30 % longer"
    return fix(summary, "minutes", treatment=treatment, code=code)


def half_precision_of(session: Session, effect: str = "activations need half the memory") -> Prescription | None:
    """Recommend 16-bit precision, in fp16 if only that is fast; None if the run uses it, or the CPU emulates it."""
    if "16" in str(session.settings.trainer.precision) or (is_cpu_run(session) and not may_multiply_in_bf16(session)):
        return None
    units = matrix_units(session, None)
    treatment, flag = "precision-bf16", "bf16-mixed"
    if units.bf16 is False and units.fp16:
        treatment, flag = ("precision-fp16", "16-mixed")
    return precision_fix(session, treatment, flag, effect)


def smaller_optimizer(session: Session) -> tuple[Prescription, ...]:
    """Recommend sharded optimizer states for several ranks with devices that do not shard yet, and smaller states."""
    strategy = (session.settings.trainer.strategy or "").lower()
    is_sharded = any(name in strategy for name in ("fsdp", "deepspeed", "modelparallel"))
    smaller = fix(
        "use an 8-bit optimizer", "minutes", "numerics", code="bitsandbytes.optim.AdamW8bit(self.parameters())"
    )
    optimizers = session.settings.model.optimizers if session.settings.model is not None else ()
    if any(each.class_name.rpartition(".")[2] == "SparseAdam" for each in optimizers):
        smaller = fix(  # neither 8-bit optimizers nor Adafactor take sparse gradients
            "use Adagrad for the sparse embeddings: it keeps one state per element instead of two",
            "minutes",
            "semantics",
            code="torch.optim.Adagrad(embedding.parameters())",
        )
    elif is_cpu_run(session):  # which 8-bit optimizers do not run on
        momentum = "use an optimizer with fewer states, e.g. SGD with momentum or Adafactor: half or less of Adam's"
        smaller = fix(momentum, "hours", "semantics", code="torch.optim.Adafactor(self.parameters())  # torch ≥ 2.5")
    sharded = fix(
        'set strategy="fsdp": ranks share optimizer states, gradients and weights',
        "minutes",
        "numerics",
        treatment="fsdp",
        trainer_flags={"strategy": "fsdp"} if is_tight(session) else {},
        code='Trainer(..., strategy="fsdp")',
    )
    can_shard = session.run.world_size > 1 and not is_sharded and not is_cpu_run(session)  # FSDP needs GPUs
    return (sharded, smaller) if can_shard else (smaller,)


def fewer_batches_ahead(session: Session) -> Prescription | None:
    """Recommend half of the workers, each at most two batches ahead; None if no loader has workers."""
    loaders = [one for one in session.settings.loaders if one.num_workers]
    if not loaders:
        return None
    most = max(loaders, key=lambda one: (one.num_workers or 0) * (one.prefetch_factor or DEFAULT_PREFETCH))
    n, ahead = most.num_workers or 1, most.prefetch_factor or DEFAULT_PREFETCH
    arguments = "num_workers=1, prefetch_factor=1" if ahead > 1 else "num_workers=0, prefetch_factor=None"
    if n > 1:
        arguments = f"num_workers={n // 2}, prefetch_factor={min(ahead, DEFAULT_PREFETCH)}"
    summary = f"set {arguments} (now {n} and {ahead}) on the {most.stage} loader: fewer batches are held in memory"
    return fix(summary, "one line", code=f"DataLoader(..., {arguments})")


def batch_parts(session: Session, n_samples: int | None) -> int:
    """Return the number of parts into which a batch of ``n_samples`` must be split so that each fits; 2 if unknown."""
    headroom = session.memory.headroom
    fits = headroom.largest_batch if headroom is not None else None
    return -(-n_samples // fits) if fits and n_samples and 0 < fits < n_samples else 2


def smaller_batch(session: Session, oom: OutOfMemory | None = None) -> Prescription:
    """Recommend a smaller batch than that of the headroom, or of an out-of-memory error, with as much accumulation."""
    loaders = [loader for loader in session.settings.loaders if loader.stage == "train"]
    own = loaders[0].batch_size if len(loaders) == 1 and loaders[0].is_plain else None
    measured = oom or session.memory.headroom
    n_samples = (measured.n_samples if measured is not None else None) or own
    if n_samples == 1:
        return fix(SMALLER_SAMPLES, "hours", "semantics")
    parts = batch_parts(session, n_samples)
    accumulated = parts * (session.settings.trainer.accumulate_grad_batches or 1)
    code = f"Trainer(..., accumulate_grad_batches={accumulated})"
    if n_samples is None:  # accumulation alone would only make the batch larger
        return fix(
            f"halve batch_size and set accumulate_grad_batches={accumulated}", "one line", "semantics", code=code
        )
    size = max(1, n_samples // parts)
    is_argument = n_samples == own
    return fix(
        f"set batch_size={size} (now {n_samples}) and accumulate_grad_batches={accumulated}",
        "one line",
        "semantics",
        trainer_flags={"accumulate_grad_batches": accumulated} if is_argument else {},
        loader_args={"batch_size": size} if is_argument else {},
        code=f"DataLoader(..., batch_size={size})\n{code}",
    )


def smaller_batches(session: Session) -> Iterator[Prescription]:
    """Recommend smaller batches in the stage that ran."""
    if session.run.stage == "fit":
        yield smaller_batch(session)
    else:
        yield from less_evaluated_at_once(session)


def less_evaluated_at_once(session: Session, oom: OutOfMemory | None = None) -> Iterator[Prescription]:
    """Recommend smaller batches of validation, testing or prediction, and predictions that are not kept."""
    stage = {"fit": "val", "validate": "val"}.get(session.run.stage, session.run.stage)
    own = next((one.batch_size for one in session.settings.loaders if one.stage == stage), None)
    n_samples = own if oom is None else oom.n_samples
    if stage == "predict" and (oom is None or oom.step > 0):
        summary = (
            "save the predictions of each batch in a BasePredictionWriter: Trainer.predict keeps them all in memory"
        )
        yield fix(summary, "minutes", code="trainer.predict(model, return_predictions=False)")
    if n_samples == 1:
        yield fix(SMALLER_SAMPLES, "hours", "semantics")
        return
    change = f"set batch_size={n_samples // 2} (now {n_samples})" if n_samples else "halve batch_size"
    yield fix(f"{change} on the {stage} loader", "one line", "numerics")


def larger_batch_text(session: Session) -> str:
    """Return the largest batch that fits as ``", up to 512"``; empty if it is not known to be larger than now."""
    headroom = session.memory.headroom
    if session.memory.oom is not None or headroom is None or not headroom.largest_batch:
        return ""
    if headroom.largest_batch <= (headroom.n_samples or 0):
        return ""
    return f", up to {headroom.largest_batch:,}{f' (now {headroom.n_samples:,})' if headroom.n_samples else ''}"
