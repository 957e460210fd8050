"""PD408: the run ended because memory ran out."""

from __future__ import annotations

from lightning_perf.records import Finding, OutOfMemory, Prescription, Session
from lightning_perf.rules.memory_signals import (
    CHECKPOINTING,
    EXPANDABLE_SEGMENTS,
    bf16_of,
    fewer_batches_ahead,
    smaller_batch,
    smaller_optimizer,
    whole_of,
)
from lightning_perf.rules.parts import fact, fix, unsigned_finding
from lightning_perf.rules.rule import rule
from lightning_perf.rules.thresholds import DOMINANT_PART
from lightning_perf.rules.wording import number_of, size_text


@rule("PD408", "out-of-memory")
def check(session: Session) -> Finding | None:
    """Report the error that ended the run."""
    oom = session.memory.oom
    if oom is None:
        return None
    where = {
        "device": "Device memory ran out",
        "host": "Host memory ran out",
        "worker": "A DataLoader worker was killed",
        "shm": "Shared memory of the DataLoader workers ran out",
    }[oom.where]
    phase = f" in {oom.phase.replace('_', ' ')}" if oom.phase else ""
    asked = f" The failed request was for {size_text(oom.requested_bytes)}." if oom.requested_bytes is not None else ""
    killed = " The system kills workers when host memory runs out." if oom.where == "worker" else ""
    evidence = [fact("steps before", oom.step, "count")]
    for tensor in oom.largest_tensors[:3]:
        name = tensor.name or "an unnamed tensor"
        evidence.append(fact(f"live: {name}", tensor.n_bytes, "bytes"))
    return unsigned_finding(
        severity="high",
        summary=f"{where}{phase} after {number_of(oom.step, 'step')}.{killed}{asked}",
        evidence=tuple(evidence),
        prescriptions=_prescriptions(session, oom),
    )


def _prescriptions(session: Session, oom: OutOfMemory) -> tuple[Prescription, ...]:
    fewer = fewer_batches_ahead(session)
    if oom.where in ("worker", "host"):
        return (fewer, _STREAM) if fewer is not None else (_STREAM,)
    if oom.where == "shm":
        return (_MORE_SHARED_MEMORY, fewer) if fewer is not None else (_MORE_SHARED_MEMORY,)
    breakdown = session.memory.breakdown
    chosen: list[Prescription] = []
    if breakdown is not None:
        whole = whole_of(breakdown)
        if (breakdown.activations_bytes or 0) > DOMINANT_PART * whole:
            chosen += (CHECKPOINTING, *bf16_of(session))
        elif (breakdown.optimizer_bytes or 0) > DOMINANT_PART * whole:
            chosen.append(smaller_optimizer(session))
    if any(
        d.peak_reserved_bytes - d.peak_allocated_bytes > (oom.requested_bytes or 2**40) for d in session.memory.devices
    ):
        chosen.append(EXPANDABLE_SEGMENTS)
    return (*chosen, smaller_batch(session, oom.n_samples))


_STREAM = fix("read samples from disk when needed instead of keeping them in memory", "hours")
_MORE_SHARED_MEMORY = fix(
    "start the container with more shared memory: docker run --shm-size=8g",
    "minutes",
    code="docker run --shm-size=8g ...",
)
