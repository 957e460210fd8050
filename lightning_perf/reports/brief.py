"""The brief report on a terminal: at most 15 lines of 80 columns at the end of a run, 1 to 3 at the end of an epoch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from lightning_perf.records import Finding, Prescription, Session
from lightning_perf.rules.gain import is_measured

from . import wording
from .render.console import QUIET, SEVERITY_STYLES
from .sections import about, memory, phases
from .sections.findings import ordered_findings
from .sections.post_mortem import WHERE, circumstances
from .sections.verdict import machine_text, step_word

MAX_LINES = 15
MAX_WIDTH = 80
_MAX_FIXES = 3
_MAX_PHASES = 3
_LEAST_SHARE = 0.05
"""Phases below this share of the time are summed up."""
_MAX_OVERHEAD_SHARE = 0.02
"""The overhead is shown above this share of the run."""
_MIN_OVERHEAD_RUN_S = 60.0
"""In a shorter run, the reports at its end are a large share of it."""
_MIN_EPOCH_S = 30.0
_SAME_STEP = 0.10
"""A step time that changed by less is not reported at the end of an epoch."""
_BAR = 30
_FIX = 35
_EXPECTED = re.compile(r" \((?:expect|up to|not measured)[^()]*\)$")
_CLAUSE = re.compile(r"[;:,] | \(")
_SHORTEST_CLAUSE = 20


class Line(NamedTuple):
    """One line: segments of text and style; `is_spare` if it is dropped first where there is no room."""

    segments: tuple[tuple[str, str], ...]
    is_spare: bool = False


_BLANK = Line((), is_spare=True)


class BriefReport:
    """Draws lines, each cut at the width of the console."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = tuple(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        for line in self.lines:
            text = Text.assemble(
                *((wording.fit_encoding(text, options.encoding), style) for text, style in line.segments)
            )
            text.truncate(width, overflow="crop" if options.encoding == "ascii" else "ellipsis")
            text.no_wrap = True
            yield text


def brief_report(session: Session, place: str | None = None) -> BriefReport:
    """Return the brief diagnosis of a run.

    Args:
        session: The session.
        place: Path of the session for the commands that show more; None if it was not saved.
    """
    if session.memory.oom is not None:
        return BriefReport(_fitted([*_out_of_memory(session), *_fixes(session), *_commands(session, place)]))
    if session.verdict.category == "healthy" and not _warnings(session):
        return BriefReport([*_headline(session), _facts(session), *_details(place)])
    lines = [*_headline(session), _facts(session), *_phases(session), *_fixes(session)]
    return BriefReport(_fitted([*lines, *_state(session), *_commands(session, place)]))


def brief_epoch(session: Session, epoch_index: int, previous: Session | None = None) -> BriefReport | None:
    """Return the report of an epoch, or None if there is nothing new.

    Args:
        session: With findings and verdict up to now.
        epoch_index: ``Epoch.index`` of the epoch that ended.
        previous: The session at the last report that was shown; None at first.
    """
    epoch = next((each for each in session.epochs if each.index == epoch_index), None)
    if epoch is None or epoch.wall_s < _MIN_EPOCH_S:
        return None
    before = next((e for e in reversed(previous.epochs) if e.step_p50_s), None) if previous is not None else None
    change = None
    if before is not None and before.step_p50_s and epoch.step_p50_s:
        change = epoch.step_p50_s / before.step_p50_s - 1
    is_same = previous is not None and previous.verdict.code == session.verdict.code
    if is_same and (change is None or abs(change) <= _SAME_STEP):
        return None
    told = [f"epoch {epoch_index}"]
    if epoch.step_p50_s is not None:
        signed = "" if change is None else f" ({'+' if change >= 0 else '−'}{wording.share(abs(change))})"
        told.append(f"{wording.seconds(epoch.step_p50_s)}/step{signed}")
    wait = epoch.phases.get("data_wait", 0.0) / epoch.wall_s
    if wait >= _LEAST_SHARE:
        told.append(f"data wait {wording.share(wait)}")
    finding = _verdict_finding(session)
    if finding is None:
        told.append(wording.line(session.verdict.text, 60).partition(":")[0])
    elif is_same:
        told.append(f"{finding.code} as before")
    lines = [Line((("PerfDoctor  ", "bold"), (" · ".join(told), "")))]
    if finding is not None and not is_same:
        clause = _clause(finding.summary)
        style = SEVERITY_STYLES[finding.severity]
        lines.append(Line(((f"  {wording.line(finding.code, 16)} ", style), (clause, ""))))
        lines += [Line((("  fix   ", QUIET), (_fix_text(each), ""))) for each in finding.prescriptions[:1]]
    return BriefReport(lines)


def brief_preflight(findings: Sequence[Finding]) -> BriefReport:
    """Return what the settings alone make likely, one line per finding; findings must not be empty."""
    lines = []
    for finding in findings[:_MAX_FIXES]:
        fix = f": {_fix_text(finding.prescriptions[0], 'set ')}" if finding.prescriptions else ""
        text = f"likely {wording.line(finding.name, 60)}{fix}"
        lines.append(_right_aligned("PerfDoctor  ", text, wording.line(finding.code, 16)))
    more = len(findings) - _MAX_FIXES
    return BriefReport([*lines, Line(((f"+{more} more", QUIET),))] if more > 0 else lines)


def _fitted(lines: Sequence[Line]) -> list[Line]:
    """Return at most `MAX_LINES` lines: a spare last one is dropped first, then blank ones, then other spare ones."""
    kept = list(lines[:-1]) if len(lines) > MAX_LINES and lines[-1].is_spare else list(lines)
    for is_blank in (True, False):
        for i in reversed(range(len(kept))):
            if len(kept) > MAX_LINES and kept[i].is_spare and (not kept[i].segments or not is_blank):
                del kept[i]
    return kept[:MAX_LINES]


def _verdict_finding(session: Session) -> Finding | None:
    return next((f for f in session.findings if f.code == session.verdict.code), None)


def _headline(session: Session) -> Iterator[Line]:
    finding = _verdict_finding(session)
    label, code = "PerfDoctor  ", wording.line(session.verdict.code or "", 16)
    text = _EXPECTED.sub("", wording.line(session.verdict.text, 400))
    style = "bold green" if session.verdict.category == "healthy" else "bold"
    room = MAX_WIDTH - len(label) - (len(code) + 2 if code else 0)
    if finding is not None:
        style = SEVERITY_STYLES[finding.severity]
        fix = f": {_fix_text(finding.prescriptions[0], 'set ')}" if finding.prescriptions else ""
        text = _first_sentence(finding.summary) + fix
        if cell_len(text) > room:
            text = _clause(finding.summary) + fix
    at = text.rfind(" ", room // 2, room) if cell_len(text) > room else -1
    yield _right_aligned(label, text[:at] if at > 0 else text, code, style)
    if at > 0:
        yield Line(((" " * len(label), ""), (wording.cut(text[at + 1 :], MAX_WIDTH - len(label)), style)))


def _right_aligned(label: str, text: str, code: str, style: str = "") -> Line:
    room = MAX_WIDTH - len(label) - len(code) - (2 if code else 0)
    text = wording.cut(text, room)
    gap = " " * (room - cell_len(text) + 2) if code else ""
    return Line(((label, "bold"), (text, style), (gap, ""), (code, QUIET)))


def _facts(session: Session) -> Line:
    run, steady, word = session.run, session.steady, step_word(session)
    machine, rate = wording.line(machine_text(session), 60), ""
    told = [] if run.status in ("finished", "running") else [str(run.status)]
    if run.status == "failed" and run.error:
        told = [f"failed ({run.error})"]
    if run.stage != "fit":
        told.append(run.stage)
    told += [wording.count(run.n_steps, word), wording.seconds(run.wall_s)]
    if steady is not None:
        if steady.samples_per_s is not None:
            rate = f"{wording.number(round(steady.samples_per_s, 0 if steady.samples_per_s >= 10 else 2))} samples/s"
        p50, p95 = wording.seconds(steady.step_s.p50), wording.seconds(steady.step_s.p95)
        is_same_unit = p50.split(" ")[-1] == p95.split(" ")[-1]
        told += [rate, f"{p50} per {word} (p95 {p95.split(' ')[0] if is_same_unit else p95})"]
    told += [f"{run.world_size} ranks" if run.world_size > 1 else "", machine]
    told = [wording.line(each, 60) for each in told if each]
    for spare in (rate, machine):  # the least important first
        if cell_len(" · ".join(told)) > MAX_WIDTH and spare in told:
            told.remove(spare)
    return Line(((wording.cut(" · ".join(told), MAX_WIDTH), QUIET),))


def _phases(session: Session) -> Iterator[Line]:
    if session.steady is None:
        return
    rows = phases.stage_rows(session.steady, folded_below=0.0)
    shown = [row for row in rows if row.share >= _LEAST_SHARE][:_MAX_PHASES]
    rest = [row for row in rows if row not in shown and row.total_s > 0]
    cells = [(row.name, row.share, "") for row in shown]
    if rest:
        names = ", ".join(row.name for row in rest[:_MAX_PHASES])
        cells.append(("rest", sum(row.share for row in rest), names))
    width = max(11, *(len(name) + 2 for name, _, _ in cells)) if cells else 0
    yield _BLANK
    for name, share, note in cells:
        bar = "█" * max(1, round(_BAR * share))
        yield Line(
            ((f"  {name:<{width}}{_percent(share):>5}  ", ""), (bar, "cyan"), (f"  {note}" if note else "", QUIET))
        )


def _fixes(session: Session) -> Iterator[Line]:
    findings = [f for f in ordered_findings(session) if f.prescriptions and f.severity != "info"]
    groups: list[list[Finding]] = []
    for finding in findings:
        same = next((g for g in groups if _claims_the_same(g[0], finding)), None)
        if same is None:
            groups.append([finding])
        else:
            same.append(finding)
    if not groups:
        return
    yield _BLANK
    more = f" (+{len(groups) - _MAX_FIXES} more)" if len(groups) > _MAX_FIXES else ""
    yield Line(((f"  {'fix' + more:<{_FIX + 6}} {'speedup':<13} {'effort':<9} confidence", QUIET),))
    for i, group in enumerate(groups[:_MAX_FIXES], start=1):
        first = group[0]
        others = wording.line(group[1].code, 16) if len(group) == 2 else f"{len(group) - 1} others"
        tail = f" (or {others})" if len(group) > 1 else ""
        fix = wording.cut(_fix_text(first.prescriptions[0]), _FIX - len(tail)) + tail
        confidence: str = "likely" if first.is_preflight else first.confidence
        gain = first.gain
        if not is_measured(first):
            confidence, gain = "not measured", gain and msgspec.structs.replace(gain, low=1.0)
        yield Line((
            (f"{i} ", QUIET), (f"{wording.line(first.code, 16):<5} ", SEVERITY_STYLES[first.severity]),
            (f"{fix:<{_FIX}} {wording.gain(gain):<13} {first.prescriptions[0].effort:<9} {confidence}", ""),
        ))  # fmt: skip


def _claims_the_same(one: Finding, other: Finding) -> bool:
    """Return whether two findings claim the same seconds."""
    if not one.claims or set(one.claims) != set(other.claims):
        return False
    return all(abs(s - other.claims[phase]) <= 0.05 * max(s, other.claims[phase]) for phase, s in one.claims.items())


def _state(session: Session) -> Iterator[Line]:
    """Yield memory and whatever is abnormal, one line each."""
    warnings = _warnings(session)
    host, devices = session.memory.host_peak_rss_bytes, session.memory.devices
    peak = f"host peak {wording.size(host)}" if host is not None else ""
    if devices:
        total = f" of {wording.size(devices[0].total_bytes)}" if devices[0].total_bytes else ""
        peak = f"{wording.line(devices[0].device, 16)} peak {wording.size(devices[0].peak_reserved_bytes)}{total}"
    is_known = bool(session.memory.growth) and not any(map(memory.grows, session.memory.growth))
    lines = [("memory", f"{peak}, no growth" if is_known else peak)] if peak else []
    yield _BLANK
    for label, text in (*lines, *warnings):
        yield Line(((f"{label:<9}", QUIET), (wording.cut(text, MAX_WIDTH - 9), "")), is_spare=label == "memory")


def _warnings(session: Session) -> list[tuple[str, str]]:
    told = [("growth", memory.growth_text(each)) for each in session.memory.growth if memory.grows(each)]
    overhead = session.overhead
    is_long = session.run.wall_s >= _MIN_OVERHEAD_RUN_S
    if overhead is not None and (overhead.backed_off or (is_long and overhead.share > _MAX_OVERHEAD_SHARE)):
        told.append(("overhead", about.overhead_fact(session)))
    n_failed = sum(one.status == "failed" for one in session.outcomes)
    told += [
        ("failed", about.probes_fact(session)),
        ("failed", f"{wording.count(n_failed, 'rule')} failed" if n_failed else ""),
        ("applied", about.applied_fact(session)),
    ]
    return [(label, text) for label, text in told if text]


def _commands(session: Session, place: str | None) -> Iterator[Line]:
    fixes = [p for f in session.findings if f.severity != "info" for p in f.prescriptions[:1]]
    if session.memory.oom is None and any(p.treatment for p in fixes):
        yield Line((("measure  ", QUIET), ("lightning-perf trial -- python train.py", "")))
    yield from _details(place)
    if session.verdict.code:
        yield Line(
            (("explain  ", QUIET), (f"lightning-perf explain {wording.line(session.verdict.code, 16)}", "")), True
        )


def _details(place: str | None) -> Iterator[Line]:
    text = f"lightning-perf report {shlex.quote(wording.line(place, 200))} --full" if place else ""
    if cell_len(text) > MAX_WIDTH - 2:  # a path that is cut could not be copied
        text = "lightning-perf report SESSION --full"
    if cell_len(text) > MAX_WIDTH - 9:
        yield Line((("details", QUIET),))
        yield Line((("  " + text, ""),))
    elif text:
        yield Line((("details  ", QUIET), (text, "")))


def _out_of_memory(session: Session) -> Iterator[Line]:
    oom = session.memory.oom
    assert oom is not None
    code = wording.line(session.verdict.code or "", 16)
    text = f"{WHERE[oom.where]} after {wording.count(oom.step, 'step')}"
    yield _right_aligned("PerfDoctor  ", text, code, "bold red")
    for told in (wording.line(oom.error, 400), " · ".join(circumstances(oom))):
        yield Line(((wording.cut(told, MAX_WIDTH), QUIET),))
    rows = memory.memory_rows(session.memory.breakdown)[:4] if session.memory.breakdown is not None else []
    if rows:
        yield _BLANK
    for row in rows:
        bar = "█" * max(1, round(_BAR * row.share))
        yield Line(
            ((f"  {row.name:<17}{wording.size(row.n_bytes):>9}  ", ""), (bar, "cyan")), is_spare=row not in rows[:2]
        )
    yield _BLANK
    fact = memory.headroom_fact(session.memory.headroom)
    if fact:
        yield Line((("batch    ", QUIET), (fact, "")))
    yield Line((("post-mortem  ", QUIET), (wording.line(oom.post_mortem_file or "could not be written", 60), "")))


def _first_sentence(text: str) -> str:
    return wording.line(text, 400).split(". ")[0].rstrip(".")


def _clause(text: str) -> str:
    """Return the first clause of a text, or its first sentence if that is very short."""
    clause = _CLAUSE.split(_first_sentence(text))[0].rstrip(".,;:")
    return clause if len(clause) >= _SHORTEST_CLAUSE else _first_sentence(text)


def _percent(share: float) -> str:
    return wording.share(share, decimals=0) if share >= 0.01 else wording.share(share)


def _fix_text(fix: Prescription, verb: str = "") -> str:
    """Return the change in a few words: the arguments it sets, after a verb, else the start of its summary."""
    values = {**fix.trainer_flags, **fix.loader_args}
    told = [wording.line(f"{name}={value!r}", 60) for name, value in values.items()]
    while len(told) > 1 and len(", ".join(told)) > _FIX:
        del told[-1]
    return verb + ", ".join(told) if told else _clause(fix.summary)
