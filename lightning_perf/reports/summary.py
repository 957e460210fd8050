"""What every report says of a session, worked out once: where time went, what was measured, what was not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from lightning_perf.records import SEVERITIES, Finding, Session, StageTimes

from .machine import machine_facts
from .wording import count, gain, line, phase_name, seconds, share, size

FOLDED_BELOW_SHARE = 0.005
"""Phases under half a percent share one line: together they are rarely worth a look."""

MISSING_TOLD = 2
"""Missing measurements that are told with their reason unless all are asked for."""


class PhaseRow(NamedTuple):
    """One line of a breakdown; the rows of a breakdown add up to its span.

    Attributes:
        name: As shown.
        phase: Its name in the records; empty for what was folded.
        total_s: Seconds.
        share: Of the span.
        p50_s: Median seconds a step; None between steps.
    """

    name: str
    phase: str
    total_s: float
    share: float
    p50_s: float | None


def stage_rows(stage: StageTimes) -> list[PhaseRow]:
    """Where the span of a stage went, largest first."""
    totals = {name: phase.total_s for name, phase in stage.phases.items()}
    p50s = {name: phase.p50_s for name, phase in stage.phases.items()}
    return phase_rows(totals, stage.span_s, p50s)


def phase_rows(totals: Mapping[str, float], span_s: float, p50s: Mapping[str, float | None] = {}) -> list[PhaseRow]:
    """Phases largest first, the small ones folded into one row; empty without a span.

    Args:
        totals: Seconds by phase.
        span_s: Wall seconds that they describe. What the phases leave of it becomes a row of its own.
        p50s: Median seconds a step by phase.
    """
    if not span_s > 0:
        return []
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    shown = [(name, total) for name, total in ordered if total / span_s >= FOLDED_BELOW_SHARE]
    small = [(name, total) for name, total in ordered if 0 < total / span_s < FOLDED_BELOW_SHARE]
    rows = [PhaseRow(phase_name(name), name, total, total / span_s, p50s.get(name)) for name, total in shown]
    if len(small) == 1:
        [(name, total)] = small
        rows.append(PhaseRow(phase_name(name), name, total, total / span_s, p50s.get(name)))
    elif small:
        total = sum(total for _, total in small)
        rows.append(PhaseRow(f"{len(small)} smaller", "", total, total / span_s, None))
    rest = span_s - sum(totals.values())
    if rest / span_s >= FOLDED_BELOW_SHARE:
        rows.append(PhaseRow("unaccounted", "", rest, rest / span_s, None))
    return rows


def bar_spans(rows: list[PhaseRow], width: int) -> list[tuple[int, int]]:
    """Start and length of each row's bar in characters: each begins where the one above ended, all fill ``width``."""
    total = sum(row.total_s for row in rows)
    edges, passed = [0], 0.0
    for row in rows:
        passed += row.total_s
        edges.append(round(width * passed / total))
    return [(start, end - start) for start, end in itertools.pairwise(edges)]


def ordered_findings(session: Session) -> list[Finding]:
    """From worst to least; the verdict's own first, equals in the order of the rules engine."""

    def rank(finding: Finding) -> tuple[bool, int]:
        return finding.code != session.verdict.code, SEVERITIES.index(finding.severity)

    return sorted(session.findings, key=rank)


def step_word(session: Session) -> str:
    """``step`` in training, ``batch`` elsewhere."""
    return "step" if session.run.stage == "fit" else "batch"


def verdict_text(session: Session) -> str:
    """The verdict in one line, naming its rule."""
    text = line(session.verdict.text, 400)
    code = session.verdict.code
    return f"{text} ({line(code, 16)})" if code and code not in text else text


def run_facts(session: Session) -> list[str]:
    """Stage and status, size, duration and machine of the run."""
    run = session.run
    facts = [f"{line(run.stage, 16)} {line(run.status, 16)}" + (f" ({line(run.error, 60)})" if run.error else "")]
    if run.n_epochs > 1:
        facts.append(count(run.n_epochs, "epoch"))
    facts += [count(run.n_steps, step_word(session)), seconds(run.wall_s)]
    if run.world_size > 1:
        facts.append(f"rank {run.rank} of {run.world_size}")
    return [*facts, machine_text(session)]


def machine_text(session: Session) -> str:
    """Devices, else the processor, and usable cores."""
    machine = session.machine
    cores = count(int(machine.usable_cores), "core") if machine.usable_cores >= 1 else "1 core"
    if machine.devices:
        name = line(machine.devices[0].name, 40)
        many = f"{len(machine.devices)} × " if len(machine.devices) > 1 else ""
        return f"{many}{name}, {cores}"
    return f"CPU, {cores}"


def rate_facts(stage: StageTimes, word: str) -> list[str]:
    """Speed of the steady state."""
    facts = [
        f"{seconds(stage.step_s.p50)} a {word} (p50)",
        f"p95 {seconds(stage.step_s.p95)}",
        f"p99 {seconds(stage.step_s.p99)}",
    ]
    if stage.samples_per_s is not None:
        facts.append(f"{stage.samples_per_s:,.0f} samples/s" if stage.samples_per_s >= 10 else
                     f"{stage.samples_per_s:.2f} samples/s")  # fmt: skip
    return facts


def device_fact(stage: StageTimes) -> str:
    """What the device's own clock says; empty without one."""
    if stage.device is None:
        return ""
    device = stage.device
    return (
        f"device clock: idle for want of data {share(device.starved_share)} of the time, "
        f"{seconds(device.step_s.p50)} a step (p50)"
    )


def memory_fact(session: Session) -> str:
    """Peaks of device and host memory; empty when none was read."""
    parts = []
    for device in session.memory.devices[:4]:
        of_total = f" of {size(device.total_bytes)}" if device.total_bytes else ""
        parts.append(
            f"{line(device.device, 16)} peak {size(device.peak_allocated_bytes)} allocated, "
            f"{size(device.peak_reserved_bytes)} reserved{of_total}"
        )
    if len(session.memory.devices) > 4:
        parts.append(count(len(session.memory.devices) - 4, "more device"))
    if session.memory.host_peak_rss_bytes is not None:
        parts.append(f"host peak {size(session.memory.host_peak_rss_bytes)}")
    return "; ".join(parts)


def overhead_fact(session: Session) -> str:
    """What PerfDoctor itself cost; empty when not known."""
    overhead = session.overhead
    if overhead is None:
        return ""
    text = (
        f"PerfDoctor cost {seconds(overhead.per_step_us * 1e-6)} a step (budget {seconds(overhead.budget_us * 1e-6)}) "
        f"and {seconds(overhead.reporting_s)} of reporting: {share(overhead.share)} of the run"
    )
    if overhead.backed_off:
        text += f"; it stopped measuring {', '.join(line(what, 60) for what in overhead.backed_off)}"
    return text


def rules_fact(session: Session) -> str:
    """How many rules were checked and skipped; empty when none ran."""
    if not session.outcomes:
        return ""
    by_status = {status: [o for o in session.outcomes if o.status == status] for status in
                 ("finding", "passed", "skipped", "ignored", "failed")}  # fmt: skip
    checked = len(by_status["finding"]) + len(by_status["passed"])
    parts = [f"{count(checked, 'rule')} checked"]
    parts += [f"{len(by_status[s])} {s}" for s in ("skipped", "ignored", "failed") if by_status[s]]
    return ", ".join(parts)


_MAIN_FIGURES = ("steady", "validation", "memory", "windows")
"""Parts of the session whose absence a reader should know of at once; the rest is told on request."""


_DEVICE_FIGURES = ("steady.device", "memory.devices")
"""What nobody misses on a run without an accelerator."""

_SPARE_FIGURES = ("memory.growth.heap",)
"""What only sharpens another figure, where the platform tells it."""


def missing_fact(session: Session) -> str:
    """What of the main figures could not be measured, in one line: the first with their reasons; empty normally."""
    unexpected = _SPARE_FIGURES if session.machine.devices else (*_DEVICE_FIGURES, *_SPARE_FIGURES)
    rows = [(what, why) for what, why in missing_rows(session) if what.partition(".")[0] in _MAIN_FIGURES]
    rows = [(what, why) for what, why in rows if what not in unexpected]
    told = [f"{what}: {why}" for what, why in rows[:MISSING_TOLD]]
    rest = len(rows) - len(told)
    return "; ".join(told) + (f"; and {rest} more" if rest else "")


def missing_rows(session: Session) -> list[tuple[str, str]]:
    """What could not be measured and why; measurements before settings, which matter less."""
    ordered = sorted(session.missing.items(), key=lambda item: (item[0].startswith("settings."), item[0]))
    return [(line(what, 60), line(why, 120)) for what, why in ordered]


def probes_fact(session: Session) -> str:
    """Probes that failed and were switched off; empty normally."""
    return "; ".join(
        f"{line(p.probe, 60)} switched off at step {p.step}: {line(p.error, 160)}" for p in session.probes_off
    )


def outcome_rows(session: Session) -> list[tuple[str, str, str]]:
    """What became of each rule: code, status, reason."""
    return [(line(outcome.code, 16), outcome.status, line(outcome.reason)) for outcome in session.outcomes]


def applied_fact(session: Session) -> str:
    """What PerfDoctor itself changed while the training ran; figures span the time before and after."""
    told = []
    for one in session.applied:
        name, code = line(one.treatment, 60), line(one.finding, 16)
        if one.status == "applied":
            told.append(f"{name} from epoch {one.epoch} on, as {code} prescribed; figures span the time before it too")
        else:
            told.append(f"{name} was refused: {line(one.reason, 200)}")
    return "; ".join(told)


def footer_facts(session: Session, show_all: bool) -> list[tuple[str, str]]:
    """What stands under every full report, by label; what is told in full elsewhere (``show_all``) is left out."""
    rules, missing = rules_fact(session), missing_fact(session)
    if show_all:
        missing = ""
    elif "skipped" in rules:
        rules += "; lightning-perf report SESSION --all shows why"
    facts = (
        *machine_facts(session),
        ("Memory", memory_fact(session)),
        ("Overhead", overhead_fact(session)),
        ("Rules", rules),
        ("Applied", applied_fact(session)),
        ("Missing", missing),
        ("Failed", probes_fact(session)),
    )
    return [(label, fact) for label, fact in facts if fact]


def finding_title(finding: Finding) -> str:
    """``PD101 starved-by-loader``."""
    return f"{line(finding.code, 16)} {line(finding.name, 60)}"


def steady_title(session: Session, steady: StageTimes) -> str:
    """Heading of the breakdown of the stage itself."""
    return f"Where the time goes: {count(steady.n_steps, f'steady {step_word(session)}')} in {seconds(steady.span_s)}"


def validation_title(validation: StageTimes) -> str:
    """Heading of the breakdown of validation inside fit."""
    return f"Validation: {count(validation.n_steps, 'batch')} in {seconds(validation.span_s)}"


def gain_text(finding: Finding) -> str:
    """The gain to expect with what it rests on; empty without one."""
    expected = gain(finding.gain)
    if not expected or finding.gain is None:
        return ""
    basis = line(finding.gain.basis)
    return f"{expected} faster" + (f": {basis}" if basis else "")
