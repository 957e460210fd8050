"""Where the time of a run went: steady state, validation, epochs, callbacks."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from lightning_perf.records import PHASES, Session, StageTimes
from lightning_perf.reports.cells import PAGE, TAB, Column, Heads, Rows, Value, number, seconds, share
from lightning_perf.reports.document import AnyPart, Figure, Table, facts, note, table
from lightning_perf.reports.wording import phase_name, seconds_column
from lightning_perf.reports.wording import seconds as seconds_text
from lightning_perf.reports.wording import share as share_text

from .verdict import step_word

FOLDED_BELOW_SHARE = 0.005
"""Phases below half a percent are folded into one row."""

_SIX_COLUMNS_MIN_WIDTH = 80
"""The shortest line that shows all columns of a breakdown with the device's times, in characters."""


class PhaseRow(NamedTuple):
    """One line of a breakdown; the rows of a breakdown add up to its span.

    Attributes:
        name: Name for reports.
        phase: Name in the records; empty for folded phases.
        share: Fraction of the span.
    """

    name: str
    phase: str
    total_s: float
    share: float


def stage_rows(stage: StageTimes, folded_below: float = FOLDED_BELOW_SHARE) -> list[PhaseRow]:
    """Return the phases of a stage, largest first."""
    totals = {name: phase.total_s for name, phase in stage.phases.items()}
    return phase_rows(totals, stage.span_s, folded_below, stage.device.phases if stage.device is not None else ())


def phase_rows(
    totals: Mapping[str, float],
    span_s: float,
    folded_below: float = FOLDED_BELOW_SHARE,
    kept: Collection[str] = (),
) -> list[PhaseRow]:
    """Return phases largest first, with the small ones folded into one row; empty without a span.

    Args:
        totals: Seconds by phase.
        span_s: Wall seconds that they describe. The remainder becomes a separate row.
        folded_below: Share of the span below which phases are folded.
        kept: Phases that are never folded.
    """
    if not span_s > 0:
        return []
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    small = [(name, total) for name, total in ordered if total / span_s < folded_below and name not in kept]
    shown = [each for each in ordered if each not in small]
    small = [(name, total) for name, total in small if total > 0]
    if len(small) == 1:
        shown += small
    rows = [PhaseRow(phase_name(name), name, total, total / span_s) for name, total in shown]
    if len(small) > 1:
        total = sum(total for _, total in small)
        rows.append(PhaseRow(f"{len(small)} smaller", "", total, total / span_s))
    rest = span_s - sum(totals.values())
    if rest / span_s >= FOLDED_BELOW_SHARE:
        rows.append(PhaseRow("unaccounted", "", rest, rest / span_s))
    return rows


def rate_facts(stage: StageTimes, word: str) -> list[str]:
    """Return the percentiles of the step time and the throughput."""
    texts = [f"{seconds_text(stage.step_s.p50)} per {word} (p50)", f"p95 {seconds_text(stage.step_s.p95)}",
            f"p99 {seconds_text(stage.step_s.p99)}"]  # fmt: skip
    for rate, unit in ((stage.samples_per_s, "samples/s"), (stage.tokens_per_s, "tokens/s")):
        if rate is not None:
            texts.append(f"{rate:,.0f} {unit}" if rate >= 10 else f"{rate:.2f} {unit}")
    return texts


def device_fact(stage: StageTimes) -> str:
    """Return what the device's clock measured; empty without one."""
    if stage.device is None:
        return ""
    return (
        f"device: {seconds_text(stage.device.step_s.p50)} per step (p50), idle while waiting for data "
        f"{share_text(stage.device.starved_share)} of the time"
    )


def steady_parts(session: Session) -> Iterator[AnyPart]:
    """Yield the breakdown of the steady state, or why there is none."""
    if session.steady is not None:
        yield from stage_parts(session.steady, step_word(session), "phases")
    elif "steady" in session.missing:
        yield note(f"No steady steps: {session.missing['steady']}.")


def history_parts(session: Session) -> Iterator[AnyPart]:
    """Yield the step time over the run, the epochs, and the start."""
    yield Figure("timeline", "Step time over the run")
    yield Figure("epochs", "Time per phase and epoch")
    yield _epochs(session)
    rows: Rows = [(name.replace("_", " "), seconds(spent_s)) for name, spent_s in
                  sorted(session.run.startup.items(), key=lambda part: -part[1])]  # fmt: skip
    title = "Time to the end of the first step"
    yield table(("part", "time"), rows, title=title, key="startup", min_width=PAGE, bars="time")


def stage_parts(stage: StageTimes, word: str, key: str) -> Iterator[AnyPart]:
    """Yield speed and breakdown of one stage."""
    yield facts(rate_facts(stage, word), "Speed")
    yield facts([device_fact(stage)], "Device")
    yield breakdown(stage_rows(stage), stage, word, key)


def breakdown(rows: list[PhaseRow], stage: StageTimes | None = None, word: str = "step", key: str = "") -> Table:
    """Return phases as a table with bars, with the times per step of their stage; the device's if there are any."""
    phases = [stage.phases.get(row.phase) if stage is not None else None for row in rows]
    p50s = [phase.p50_s if phase is not None else None for phase in phases]
    p95s = [phase.p95_s if phase is not None else None for phase in phases]
    device_s = stage.device.phases if stage is not None and stage.device is not None else {}
    cells: Rows = [
        (row.name, Value(share_text(row.share, decimals=1), row.share), Value(total, row.total_s), Value(p50, p50_s),
         *((seconds(device_s.get(row.phase)),) if device_s else ()), seconds(p95_s))
        for row, total, p50, p50_s, p95_s in zip(rows, seconds_column([row.total_s for row in rows]),
                                                 seconds_column(p50s), p50s, p95s, strict=True)
    ]  # fmt: skip
    heads: Heads = ("phase", "share", Column("total", _SIX_COLUMNS_MIN_WIDTH if device_s else 0), f"p50 per {word}",
                    *(("p50 on device",) if device_s else ()), Column(f"p95 per {word}", PAGE))  # fmt: skip
    return table(heads, cells, key=key, bars="share", full=1.0)


def _epochs(session: Session) -> Table:
    names = [name for name in PHASES if any(epoch.phases.get(name) for epoch in session.epochs)]
    rows: Rows = [
        (Value(str(epoch.index), epoch.index), number(epoch.n_steps), seconds(epoch.wall_s),
         seconds(epoch.step_p50_s), *(seconds(epoch.phases.get(name)) for name in names))
        for epoch in session.epochs
    ]  # fmt: skip
    heads: Heads = ("epoch", "steps", "wall time", "p50 per step", *map(phase_name, names))
    return table(heads, rows, title="Epochs", key="epochs", min_width=PAGE, is_folded=True)


def named_parts(session: Session) -> Iterator[AnyPart]:
    """Yield the time of each callback, logger and part of the loop."""
    rows: Rows = [
        (each.name, each.hook, each.kind.replace("_", " "), phase_name(each.phase), number(each.n_calls),
         seconds(each.total_s), share(each.share))
        for each in (session.steady.named if session.steady is not None else ())
    ]  # fmt: skip
    heads: Heads = ("name", "hook", "kind", "phase", "calls", "total", "share")
    yield table(heads, rows, title="Callbacks, loggers and loop overhead", key="named", min_width=TAB)
