"""The brief report on a terminal: at most 15 lines of 80 columns at the end of a run, 1 to 3 at the end of an epoch."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from lightning_perf.records import Finding, OutOfMemory, Session
from lightning_perf.rules.memory_signals import is_leak

from . import wording
from .fixes import alternatives, clause, code_text, first_sentence, fix_groups, fix_text, instruction
from .render.brief import MAX_WIDTH, BriefReport, Line
from .render.console import QUIET, SEVERITY_STYLES
from .sections import about, loader, memory, phases
from .sections.findings import RESULTS
from .sections.machine import other_programs_fact
from .sections.post_mortem import WHERE, circumstances
from .sections.verdict import machine_text, step_word

MAX_LINES = 15
_MAX_FIXES = 3
_SIZES = ((_MAX_FIXES, 3), (2, 3), (2, 2), (1, 2))
"""Numbers of fixes and phases to show, the first one that leaves room for all other lines."""
_MAX_WARNINGS = 2
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
_FIX = 40
_MAX_CURVE = 3
_LABEL = 9
"""Width of the words before commands."""
_EXPECTED = re.compile(r" \((?:expect|up to|not measured)[^()]*\)$")

# Where there are too many lines, those of the highest number are dropped first.
_NEEDED, _MORE, _GAP, _NORMAL, _LAST_GAP = range(5)

_BLANK = Line((), _GAP)


def brief_report(session: Session, place: str | None = None) -> BriefReport:
    """Return the brief diagnosis of a run.

    Args:
        session: The session.
        place: Path of the session for the commands that show more; None if it was not saved.
    """
    if session.memory.oom is not None:
        return BriefReport(_fitted([*_out_of_memory(session, session.memory.oom), *_commands(session, place)]))
    warnings = _warnings(session)
    top = [*_headline(session), _facts(session)]
    if session.verdict.category == "healthy" and not warnings:
        return BriefReport([*top, *_details(place)])
    top[-1:-1] = _cautions(session)
    bottom = [*_state(session, warnings), *_commands(session, place)]
    lines: list[Line] = []
    for n_fixes, n_phases in _SIZES:
        lines = [*top, *_loader(session), *_phases(session, n_phases), *_fixes(session, n_fixes), *bottom]
        if sum(line.rank == _NEEDED for line in lines) <= MAX_LINES:
            break
    return BriefReport(_fitted(lines))


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
    old = previous.verdict.code if previous is not None else None
    if old is not None and not any(each.code == old and each.severity != "info" for each in session.findings):
        told.append(f"{wording.line(old, 16)} resolved")
    finding = _verdict_finding(session)
    if finding is None:
        told.append(wording.line(session.verdict.text, 60).partition(":")[0])
    elif is_same:
        told.append(f"{finding.code} as before")
    lines = [Line((("PerfDoctor  ", "bold"), (" · ".join(told), "")))]
    if finding is not None and not is_same:
        style = SEVERITY_STYLES[finding.severity]
        lines.append(Line(((f"  {wording.line(finding.code, 16)} ", style), (clause(finding.summary, 72), ""))))
        fixes = (fix_text(each, session, 72) for each in finding.prescriptions[:1])
        lines += [Line((("  fix   ", QUIET), (text, ""))) for text in fixes]
    return BriefReport(lines)


def brief_preflight(findings: Sequence[Finding], session: Session) -> BriefReport:
    """Return what the settings alone make likely, one line per finding; findings must not be empty."""
    lines = []
    for finding in findings[:_MAX_FIXES]:
        fix = f": {instruction(finding.prescriptions[0], session)}" if finding.prescriptions else ""
        text = f"likely {wording.line(finding.name, 60)}"
        code = wording.line(finding.code, 16)
        shown = text + fix if cell_len(text + fix) <= _room(code) else text
        lines.append(_right_aligned("PerfDoctor  ", shown, code))
    more = len(findings) - _MAX_FIXES
    return BriefReport([*lines, Line(((f"+{more} more", QUIET),))] if more > 0 else lines)


def _fitted(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without those of the highest ranks, the last ones first, if there are too many."""
    kept = list(lines)
    while len(kept) > MAX_LINES and any(line.rank for line in kept):
        highest = max(line.rank for line in kept)
        del kept[max(i for i, line in enumerate(kept) if line.rank == highest)]
    return kept


def _verdict_finding(session: Session) -> Finding | None:
    return next((f for f in session.findings if f.code == session.verdict.code), None)


def _headline(session: Session) -> list[Line]:
    finding = _verdict_finding(session)
    code = wording.line(session.verdict.code or "", 16)
    if finding is None:
        style = "bold green" if session.verdict.category == "healthy" else "bold"
        return _titled([_EXPECTED.sub("", wording.line(session.verdict.text, 400))], code, style)
    texts = [first_sentence(finding.summary), clause(finding.summary, 60), clause(finding.summary, 0)]
    first = finding.prescriptions[:1]
    fixes = [f": {instruction(each, told, room)}" for each in first for room in (90, 40) for told in (session, None)]
    return _titled([*(text + fix for text in texts for fix in fixes), *texts], code, SEVERITY_STYLES[finding.severity])


def _titled(texts: Sequence[str], code: str, style: str) -> list[Line]:
    """Return the first text that fits on two lines; the last text is cut if none does."""
    label = "PerfDoctor  "
    wrapped = [textwrap.wrap(text, _room(code), break_on_hyphens=False) or [""] for text in texts]
    first, *more = next((each for each in wrapped if len(each) <= 2), wrapped[-1])
    if len(more) > 1:
        more = [wording.cut(" ".join(more), _room(code))]
    lines = [_right_aligned(label, first, code, style)]
    return lines + [Line(((" " * len(label), ""), (each, style))) for each in more]


def _room(code: str) -> int:
    return MAX_WIDTH - len("PerfDoctor  ") - (len(code) + 2 if code else 0)


def _right_aligned(label: str, text: str, code: str, style: str = "") -> Line:
    text = wording.cut(text, _room(code))
    gap = " " * (_room(code) - cell_len(text) + 2) if code else ""
    return Line(((label, "bold"), (text, style), (gap, ""), (code, QUIET)))


def _cautions(session: Session) -> Iterator[Line]:
    """Yield what makes the verdict doubtful; it belongs next to it."""
    is_unsteady = any(finding.code == "PD902" for finding in session.findings)
    text = other_programs_fact(session) or ("step time changed by over 10 % during the run" if is_unsteady else "")
    if text:
        yield Line(((" " * len("PerfDoctor  "), ""), (f"caution: {text}", "yellow")))


def _facts(session: Session) -> Line:
    run, steady, word = session.run, session.steady, step_word(session)
    machine, rate = wording.line(machine_text(session), 60), ""
    told = [] if run.status in ("finished", "running") else [str(run.status)]
    if run.status == "failed" and run.error:
        told = [f"failed ({run.error})"]
    if run.stage != "fit":
        told.append(run.stage)
    told += [
        wording.count(run.n_steps, word) if run.stage != "data" else "",
        wording.seconds(run.wall_s) + _paused(session),
    ]
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


def _paused(session: Session) -> str:
    """Return how long the loader probe paused the run."""
    probe = session.loader_probe
    if session.run.stage == "data" or probe is None or probe.is_beside_training or probe.wall_s == 0:
        return ""
    return f" ({wording.seconds(probe.wall_s)} loader probe)"


def _phases(session: Session, n_shown: int) -> Iterator[Line]:
    if session.steady is None:
        return
    rows = phases.stage_rows(session.steady, folded_below=0.0)
    shown = [row for row in rows if row.share >= _LEAST_SHARE][:n_shown]
    rest = [row for row in rows if row not in shown and row.total_s > 0]
    device = session.steady.device
    idle = f"device idle {wording.share(device.starved_share)}" if device is not None else ""
    cells = [(row.name, row.share, idle if row.phase == "data_wait" else "") for row in shown]
    if rest:
        names = ", ".join(row.name for row in rest[:3])
        cells.append(("rest", sum(row.share for row in rest), names))
    width = max(11, *(len(name) + 2 for name, _, _ in cells)) if cells else 0
    yield _BLANK
    for name, share, note in cells:
        bar = "█" * max(1, round(_BAR * share))
        yield Line(
            ((f"  {name:<{width}}{_percent(share):>5}  ", ""), (bar, "cyan"), (f"  {note}" if note else "", QUIET))
        )


def _loader(session: Session) -> Iterator[Line]:
    """Yield what the loader's probe measured where nothing was trained."""
    probe = session.loader_probe
    if probe is None or session.steady is not None:
        return
    yield _BLANK
    yield from (Line((("  " + each, ""),)) for each in _joined(loader.ceiling_facts(session), " · "))
    for row in loader.curve_rows(session)[:_MAX_CURVE]:
        rate = f"{wording.number(round(1 / row.fetch_s, 1))} batches/s" if row.fetch_s > 0 else ""
        bar = "█" * max(1, round(_BAR * row.fill))
        name = wording.count(row.num_workers, "worker")
        yield Line(((f"  {name:<11}{rate:>14}  ", ""), (bar, "cyan"), (f"  {row.mark}" if row.mark else "", QUIET)))
    for text in loader.function_facts(probe)[:2]:
        yield Line(((wording.cut(f"  {text}", MAX_WIDTH), ""),))


def _fixes(session: Session, n_shown: int) -> Iterator[Line]:
    groups = fix_groups(session)
    if not groups:
        return
    yield _BLANK
    shown = groups[:n_shown]
    head = f"fix (+{len(groups) - n_shown} more)" if len(groups) > n_shown else "fix"
    if any(wording.gain(group[0].gain).startswith("up to") for group in shown):
        head += ' · "up to": not measured'
    yield Line(((f"  {head:<{_FIX + 7}}{'speedup':<13}{'effort':<10}cause", QUIET),))
    for i, group in enumerate(shown, start=1):
        first, fix = group[0], group[0].prescriptions[0]
        whole = code_text(fix, session, _FIX) or fix_text(fix, session, 2 * _FIX if i == 1 else _FIX)
        text = next(iter(textwrap.wrap(whole, _FIX, break_on_hyphens=False)), "")
        rest = whole[len(text) :].strip()
        yield Line((
            (f"{i} ", QUIET), (f"{wording.line(first.code, 16):<5} ", SEVERITY_STYLES[first.severity]),
            (f"{text:<{_FIX}} {wording.gain(first.gain):<13}{fix.effort:<10}{wording.certainty(first)}", ""),
        ))  # fmt: skip
        if rest:
            yield Line(((" " * 8 + rest, ""),))
        other = alternatives(group, session, MAX_WIDTH - 8)
        if other:
            yield Line(((" " * 8 + other, QUIET),), _MORE)


def _state(session: Session, warnings: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """Yield memory and whatever is abnormal, one line each."""
    host, devices = session.memory.host_peak_rss_bytes, session.memory.devices
    peak = f"host peak {wording.size(host)}" if host is not None else ""
    if devices:
        total = f" of {wording.size(devices[0].total_bytes)}" if devices[0].total_bytes else ""
        peak = f"{wording.line(devices[0].device, 16)} peak {wording.size(devices[0].peak_reserved_bytes)}{total}"
    is_known = bool(session.memory.growth) and not any(map(memory.grows, session.memory.growth))
    yield Line((), _LAST_GAP)
    if peak:
        yield _labelled("memory", f"{peak}, no growth" if is_known else peak, _NORMAL)
    yield from (_labelled(label, wording.cut(text, MAX_WIDTH - _LABEL)) for label, text in warnings[:_MAX_WARNINGS])


def _labelled(label: str, text: str, rank: int = _NEEDED) -> Line:
    return Line(((f"{label:<{_LABEL}}", QUIET), (text, "")), rank)


def _warnings(session: Session) -> list[tuple[str, str]]:
    told = [("growth", memory.growth_text(each)) for each in session.memory.growth if is_leak(each)]
    overhead = session.overhead
    is_long = session.run.wall_s >= _MIN_OVERHEAD_RUN_S
    if overhead is not None and (overhead.backed_off or (is_long and overhead.share > _MAX_OVERHEAD_SHARE)):
        told.append(("overhead", about.overhead_fact(session).partition(";")[0]))
    n_failed = sum(one.status == "failed" for one in session.outcomes)
    told += [
        ("failed", about.probes_fact(session)),
        ("failed", f"{wording.count(n_failed, 'rule')} failed" if n_failed else ""),
        ("applied", about.applied_fact(session)),
    ]
    return [(label, text) for label, text in told if text]


def _commands(session: Session, place: str | None) -> Iterator[Line]:
    groups = fix_groups(session)
    if session.memory.oom is None and session.run.stage == "fit" and groups:
        if any(group[0].prescriptions[0].treatment for group in groups[:_MAX_FIXES]):
            yield _command("measure", "lightning-perf trial -- python train.py", "short runs, script unchanged")
        elif place:
            yield _command("measure", f"lightning-perf compare {_quoted(place)} NEXT_RUN", "after the change")
    yield from _details(place)
    code = wording.line(session.verdict.code or ("PD408" if session.memory.oom is not None else ""), 16)
    if code:
        yield _command("explain", f"lightning-perf explain {code}", "why, and when it does not apply")


def _details(place: str | None) -> Iterator[Line]:
    if place:
        yield _command("details", f"lightning-perf report {_quoted(place)} --full", "all findings and figures")


def _command(label: str, command: str, purpose: str) -> Line:
    """Return a command with its purpose, which is left out where there is no room."""
    return Line(((f"{label:<{_LABEL}}", QUIET), (command, ""), (f"   {purpose}", QUIET)), is_command=True)


def _quoted(place: str) -> str:
    return shlex.quote(wording.line(place, 1_000))


def _out_of_memory(session: Session, oom: OutOfMemory) -> Iterator[Line]:
    code = wording.line(session.verdict.code or "PD408", 16)
    text = f"{WHERE[oom.where]} after {wording.count(oom.step, 'step')}"
    yield from _titled([text], code, "bold red")
    error = re.split(r"(?<=\.) ", wording.line(oom.error, 400).removeprefix("OutOfMemoryError: "))
    for each in (*_joined(error, " ")[:1], *_joined(circumstances(oom), " · ")[:2]):
        yield Line(((wording.cut(each, MAX_WIDTH), QUIET),))
    rows = memory.memory_rows(session.memory.breakdown)[:4] if session.memory.breakdown is not None else []
    if rows:
        yield _BLANK
    for row in rows:
        bar = "█" * max(1, round(_BAR * row.share))
        rank = _NEEDED if row in rows[:3] else _NORMAL
        yield Line(((f"  {row.name:<17}{wording.size(row.n_bytes):>9}  ", ""), (bar, "cyan")), rank)
    found = next((each for each in session.findings if each.code == "PD408"), None)
    fixes = found.prescriptions[:_MAX_FIXES] if found is not None else ()
    if len(fixes) > 1:
        yield Line((("  try in this order", QUIET),), _MORE)
    for i, fix in enumerate(fixes, start=1):
        text, cost = clause(fix.summary, MAX_WIDTH - 2), f"  ({fix.effort}, {RESULTS[fix.safety]})"
        cost = cost if cell_len(text + cost) <= MAX_WIDTH - 2 else f"  ({fix.effort})"
        yield Line(((f"{i} ", QUIET), (text, ""), (cost, QUIET)))
        lines = wording.block(fix.code)
        if len(lines) == 1 and len(lines[0]) <= MAX_WIDTH - 4:
            yield Line((("    " + lines[0], "green"),), _MORE)
    yield Line((), _LAST_GAP)
    if oom.post_mortem_file:
        yield _labelled("report", f"{wording.line(oom.post_mortem_file, 60)} holds the memory state at the failure")


def _joined(parts: Sequence[str], separator: str) -> list[str]:
    """Return lines of whole parts."""
    lines = list(parts[:1])
    for part in parts[1:]:
        longer = lines[-1] + separator + part
        lines[-1:] = [longer] if cell_len(longer) <= MAX_WIDTH else [lines[-1], part]
    return lines


def _percent(share: float) -> str:
    return wording.share(share, decimals=0) if share >= 0.01 else wording.share(share)
