"""PD408: the run ended because memory ran out."""

import math
from collections.abc import Iterator

import msgspec

from lightning_perf.records import Finding, OutOfMemory, Prescription, Session
from lightning_perf.rules.findings import PrescriptionLike, fact, fix, make_finding
from lightning_perf.rules.memory_signals import (
    EXPANDABLE_SEGMENTS,
    batch_parts,
    checkpointing_of,
    fewer_batches_ahead,
    half_precision_of,
    less_evaluated_at_once,
    memory_in_use,
    smaller_batch,
    smaller_optimizer,
)
from lightning_perf.rules.rule import rule
from lightning_perf.rules.signals import is_cpu_run, steps_text
from lightning_perf.rules.thresholds import DOMINANT_PART, SHM_GIB, SHM_SAFETY_FACTOR
from lightning_perf.rules.wording import size_text

_MODEL_PHASES = ("forward", "backward", "optimizer", "validation")


@rule("PD408", "out-of-memory")
def check(session: Session) -> Finding | None:
    oom = session.memory.oom
    if oom is None:
        return None
    where = {
        "device": "Device memory ran out",
        "host": "Host memory ran out",
        "worker": "A DataLoader worker was killed",
        "shm": "Shared memory of the DataLoader workers ran out",
    }[oom.where]
    rank = f" on rank {session.run.rank}" if session.run.world_size > 1 else ""
    phase = f" in {oom.phase.replace('_', ' ')}" if oom.phase else ""
    request = f" The failed request was {size_text(oom.requested_bytes)}." if oom.requested_bytes is not None else ""
    killed = " The system kills workers when host memory runs out." if oom.where == "worker" else ""
    return make_finding(
        severity="high",
        summary=f"{where}{rank}{phase} after {steps_text(session, oom.step)}.{killed}{request}",
        evidence=(
            fact("completed steps", oom.step, "count"),
            *(
                fact(f"live tensor: {t.name or 'an unnamed tensor'}", t.n_bytes, "bytes")
                for t in oom.largest_tensors[:3]
            ),
        ),
        prescriptions=_prescriptions(session, oom),
    )


def _prescriptions(session: Session, oom: OutOfMemory) -> PrescriptionLike:
    if oom.where == "shm":
        return _more_shared_memory(session), fewer_batches_ahead(session)
    of_device = (msgspec.structs.replace(one, frees_bytes=n) for one, n in _for_device(session, oom))
    if oom.where == "device":
        return of_device
    is_model = oom.where == "host" and oom.phase in _MODEL_PHASES and is_cpu_run(session)
    return *(of_device if is_model else ()), fewer_batches_ahead(session), _STREAM


def _for_device(session: Session, oom: OutOfMemory) -> Iterator[tuple[Prescription, int | None]]:
    """Yield recommendations, each with the bytes that it frees by the memory breakdown."""
    unused = max((d.peak_reserved_bytes - d.peak_allocated_bytes for d in session.memory.devices), default=0)
    segments = [(EXPANDABLE_SEGMENTS, unused)] if unused > (oom.requested_bytes or 2**40) else []
    if session.run.stage != "fit" or oom.phase == "validation":  # the breakdown is that of a training step
        yield from (*segments, *((one, None) for one in less_evaluated_at_once(session, oom)))
        return
    breakdown = session.memory.breakdown
    activations = (breakdown.activations_bytes or 0) if breakdown is not None else 0
    states = (breakdown.optimizer_bytes or 0) if breakdown is not None else 0
    much = DOMINANT_PART * memory_in_use(breakdown) if breakdown is not None else math.inf
    if activations > much:
        less = (checkpointing_of(session), half_precision_of(session))
        yield from ((one, activations // 2) for one in less if one is not None)
    elif states > much:
        for one in smaller_optimizer(session):
            n_parts = session.run.world_size if "fsdp" in one.code else 4  # 8 instead of 32 bits per state
            yield one, states - states // n_parts
    yield from segments
    parts = 1 if oom.n_samples == 1 else batch_parts(session, oom.n_samples)
    yield smaller_batch(session, oom), (activations - activations // parts) or None


def _more_shared_memory(session: Session) -> Prescription:
    gib = max(SHM_GIB, -(-SHM_SAFETY_FACTOR * (session.machine.shm_bytes or 0) // 2**30))
    size = f"docker run --shm-size={gib}g"
    return fix(f"start the container with more shared memory: {size}", "minutes", code=f"{size} ...")


_STREAM = fix("read samples from disk when needed instead of keeping them in memory", "hours")
