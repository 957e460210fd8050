"""The session as plain floats for any logger, and as scalars and text for TensorBoard."""

from __future__ import annotations

import math
from typing import Any, Protocol

from lightning_perf.records import Session, StageTimes

from .markdown import to_markdown

TEXT_TAG = "perf/diagnosis"


class Writer(Protocol):
    """What a TensorBoard ``SummaryWriter`` offers of interest here."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = ...) -> Any: ...

    def add_text(self, tag: str, text_string: str, global_step: int | None = ...) -> Any: ...


def scalars(session: Session) -> dict[str, float]:
    """The figures of a session by tag, all finite; what was not measured has no tag.

    ``perf/step_ms/p50`` (also p95, p99), ``perf/samples_per_s``, ``perf/share/<phase>`` (0…1 of the steady span),
    ``perf/starved_share`` (the device's clock), ``perf/overhead_us`` (a step) and ``perf/overhead_share``,
    ``perf/memory_gib/<device>``. Validation inside fit stands under ``perf/validation/…``, other stages under
    ``perf/<stage>/…``.
    """
    figures: dict[str, float | None] = {}
    if session.steady is not None:
        root = "perf" if session.run.stage == "fit" else f"perf/{session.run.stage}"
        figures.update(_stage_scalars(root, session.steady))
    if session.validation is not None:
        figures.update(_stage_scalars("perf/validation", session.validation))
    for device in session.memory.devices:
        figures[f"perf/memory_gib/{device.device.replace(':', '_')}"] = device.peak_allocated_bytes / 1024**3
    if session.overhead is not None:
        figures["perf/overhead_us"] = session.overhead.per_step_us
        figures["perf/overhead_share"] = session.overhead.share
    return {tag: float(value) for tag, value in figures.items() if value is not None and math.isfinite(value)}


def write_scalars(writer: Writer, session: Session, step: int) -> None:
    """Writes ``scalars(session)`` at ``step``."""
    for tag, value in scalars(session).items():
        writer.add_scalar(tag, value, step)


def write_text(writer: Writer, session: Session, step: int) -> None:
    """Writes the diagnosis as Markdown at ``step``, under ``perf/diagnosis``."""
    writer.add_text(TEXT_TAG, to_markdown(session), step)


def _stage_scalars(root: str, stage: StageTimes) -> dict[str, float | None]:
    figures: dict[str, float | None] = {
        f"{root}/step_ms/p50": stage.step_s.p50 * 1e3,
        f"{root}/step_ms/p95": stage.step_s.p95 * 1e3,
        f"{root}/step_ms/p99": stage.step_s.p99 * 1e3,
        f"{root}/samples_per_s": stage.samples_per_s,
        f"{root}/starved_share": stage.device.starved_share if stage.device is not None else None,
    }
    figures.update({f"{root}/share/{name}": phase.share for name, phase in stage.phases.items()})
    return figures
