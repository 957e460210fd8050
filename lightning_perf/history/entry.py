"""Reduce a session to what the history keeps, and identify runs of the same training.

A run is kept as a session with few fields, so that `compare_sessions` and all reports work on earlier runs too.
docs/reference/history.md lists the fields.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from lightning_perf.records import (
    Block,
    DeviceMemory,
    Finding,
    Memory,
    ModelSettings,
    RuleOutcome,
    Session,
    Telemetry,
    Verdict,
)

MAX_BLOCKS = 128
"""Most points of the timeline: `stats.single_runs.level` makes 32 batches of them, and medians of these."""

MAX_EPOCHS = 9
"""Most epochs kept: the first, which comparisons leave out, and the last ones."""


def key_of(session: Session) -> str:
    """Return the fingerprint of a training: equal for runs whose step times can be compared.

    Batch size and sample shapes are settings, which change from run to run; only the kind of batch is in the key.
    """
    model, provenance, machine = session.settings.model, session.provenance, session.machine
    device = machine.devices[0].name if machine.devices else machine.cpu_model
    parts = (
        session.run.stage,
        model.class_name if model is not None else None,
        (provenance.parameters or provenance.script) if provenance is not None else None,  # script: unknown shapes
        [shape.count("x") + bool(shape) for shape in provenance.sample_shapes] if provenance is not None else None,
        [each.class_name for each in model.optimizers] if model is not None else None,
        device,
        session.run.world_size,
    )
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def reduced(session: Session) -> Session:
    """Return the part of a session that the history keeps: no code, no data, no paths outside the project."""
    replace = msgspec.structs.replace
    settings, steady, memory, telemetry = session.settings, session.steady, session.memory, session.telemetry
    if settings.model is not None:
        fields = ("class_name", "parameters", "n_trainable", "layers", "is_compiled", "optimizers")
        model = ModelSettings(**_fields(settings.model, fields))
        optimizers = tuple(replace(one, dropping_backward="") for one in model.optimizers)
        settings = replace(settings, model=replace(model, optimizers=optimizers))
    if steady is not None:
        timeline = coarsened(steady.timeline)
        steady = replace(steady, named=(), fetch=None, device=None, outliers=None, timeline=timeline)
    energy = telemetry.energy if telemetry is not None else None
    code = session.verdict.code
    return Session(
        run=session.run,
        machine=session.machine,
        settings=settings,
        epochs=(*session.epochs[:1], *session.epochs[1:][1 - MAX_EPOCHS :]),
        steady=steady,
        memory=Memory(
            devices=tuple(DeviceMemory(**_fields(each, _DEVICE_FIELDS)) for each in memory.devices),
            host_peak_rss_bytes=memory.host_peak_rss_bytes,
        ),
        # Summaries, evidence and recommendations may quote code and paths.
        findings=tuple(
            Finding(
                code=f.code,
                name=f.name,
                category=f.category,
                severity=f.severity,
                summary=f.name,
                evidence=(),
                confidence=f.confidence,
                is_preflight=f.is_preflight,
            )
            for f in session.findings
        ),
        outcomes=tuple(RuleOutcome(code=each.code, status=each.status) for each in session.outcomes),
        verdict=Verdict(
            category=session.verdict.category,
            code=code,
            text=next((f.name for f in session.findings if f.code == code), session.verdict.category),
        ),
        telemetry=None if energy is None else Telemetry(hz=0.0, energy=energy),
        provenance=session.provenance,
    )


_DEVICE_FIELDS = ("device", "peak_allocated_bytes", "peak_reserved_bytes", "total_bytes")


def _fields(record: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def coarsened(timeline: Sequence[Block]) -> tuple[Block, ...]:
    """Return the timeline with at most `MAX_BLOCKS` points of equal length; a remainder at its end is left out."""
    size = max(1, -(-len(timeline) // MAX_BLOCKS))
    groups = [timeline[i : i + size] for i in range(0, len(timeline), size)]
    return tuple(_merged(group) for group in groups if len(group) == size)


def _merged(group: Sequence[Block]) -> Block:
    n = sum(each.n_steps for each in group)
    names = dict.fromkeys(name for each in group for name in each.phases)
    return Block(
        first_step=group[0].first_step,
        n_steps=n,
        start_s=_short(group[0].start_s),
        step_s=_short(sum(each.step_s * each.n_steps for each in group) / n),
        max_step_s=_short(max(each.max_step_s for each in group)),
        phases={name: _short(sum(each.phases.get(name, 0.0) * each.n_steps for each in group) / n) for name in names},
    )


def _short(value: float) -> float:
    """Return a value rounded to the four digits that a comparison needs, which halves the size of a row."""
    return float(f"{value:.4g}")
