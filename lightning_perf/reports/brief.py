"""The brief report on a terminal: at most 15 lines of 80 columns at the end of a run, 1 to 3 at the end of an epoch."""

import re
import shlex
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from lightning_perf.records import Finding, ModelProfile, Overhead, Session, StageTimes
from lightning_perf.rules.memory_signals import is_leak

from . import wording
from .brief_lines import (
    BLANK,
    EXPLAIN,
    LABEL,
    LAST_GAP,
    MAX_LINES,
    MAX_WIDTH,
    MORE,
    NEEDED,
    TITLE,
    BriefReport,
    Line,
    bar,
    command,
    fitted,
    labeled,
    part_of,
    titled,
    wrapped,
)
from .brief_oom import out_of_memory
from .fixes import alternatives, clause, code_text, first_sentence, fix_groups, fix_text, instruction
from .render.console import QUIET, SEVERITY_STYLES, joined
from .sections import about, autopilot, loader, memory, phases
from .sections.fixes import measured_speedup
from .sections.host import heavy_module
from .sections.machine import other_programs_fact
from .sections.verdict import machine_text, step_word, verdict_finding
from .sites import where

_MAX_FIXES = 3
_SIZES = ((_MAX_FIXES, 3, 2), (_MAX_FIXES, 3, 1), (2, 3, 1), (2, 2, 1), (1, 2, 1))
"""Numbers of fixes, of phases and of lines that say where, the first ones that leave room for all other lines."""
_MAX_WARNINGS = 2
_LEAST_SHARE = 0.05
"""Phases below this share of the time are summed up."""
_MAX_OVERHEAD_SHARE = 0.02
"""The overhead is shown above this share of the run."""
_MIN_OVERHEAD_RUN_S = 60.0
"""In a shorter run, the reports at its end are a large share of it."""
_FIX, _SPEEDUP, _EFFORT = 38, 14, 10
"""Widths of the columns of fixes."""
_MAX_CURVE = 3
_MODULE = 15
"""Width of a module's path beside the bar of a phase."""
_RANKS_WAIT = "of rank 0, with waits for others"
_CALLED_AT, _CALL = re.compile(r", called at [^ ,]+,"), re.compile(r" in [^ ]+(?:: .*)?$")
"""What a headline can do without: where a function is called, and what it calls."""
_EXPECTED = re.compile(r" \((?:expect|up to|not measured)[^()]*\)$")


def brief_report(session: Session, place: str | None = None) -> BriefReport:
    """Return the brief diagnosis of a run; ``place`` is the path of the session for commands that show more."""
    if session.memory.oom is not None:
        top = [*out_of_memory(session, session.memory.oom, place)]
        return BriefReport(fitted([*top, *_commands(session, place)]))
    warnings = _warnings(session)
    headline, facts = _headline(session), [*_cautions(session), _facts(session)]
    if session.verdict.category == "healthy":
        noted = [line for line in _state(warnings) if line.segments]
        return BriefReport([*headline, *facts, *noted, *_details(place)])
    bottom = [*_state(warnings), *_commands(session, place)]
    lines: list[Line] = []
    for n_fixes, n_phases, n_where in _SIZES:
        top = [*headline, *_where(session, headline, n_where), *facts]
        lines = [*top, *_loader(session), *_phases(session, n_phases), *_fixes(session, n_fixes), *bottom]
        if sum(line.drop_order <= (NEEDED if n_where == 1 else MORE) for line in lines) <= MAX_LINES:
            break
    return BriefReport(fitted(lines))


def _headline(session: Session) -> list[Line]:
    finding = verdict_finding(session)
    code = wording.line(session.verdict.code or "", 16)
    if finding is None:
        style = "bold green" if session.verdict.category == "healthy" else "bold"
        return titled([_EXPECTED.sub("", wording.line(session.verdict.text, 400))], code, style)
    whole = first_sentence(finding.summary)
    texts = [whole, clause(whole, 60), clause(whole, 0)]
    first = finding.prescriptions[:1]
    limits = ((session, 90), (None, 90), (session, 40), (None, 40))
    fixes = [f": {instruction(each, now_from, limit)}" for each in first for now_from, limit in limits]
    shorter = [_CALLED_AT.sub("", whole), _CALLED_AT.sub("", _CALL.sub("", whole))]
    forms = [*(text + fix for text in texts for fix in fixes), *texts[:2], *shorter, *texts[2:]]
    return titled(forms, code, SEVERITY_STYLES[finding.severity])


def _where(session: Session, headline: Sequence[Line], max_lines: int) -> Iterator[Line]:
    """Yield the line of code that the time goes into, unless the headline names one."""
    finding = verdict_finding(session)
    shown = " ".join(text.strip() for line in headline for text, _ in line.segments[1:2])
    forms = [wrapped(text, MAX_WIDTH - len(TITLE)) for text in (where(finding, shown) if finding is not None else ())]
    fitting = next((form for form in forms if len(form) <= max_lines), forms[-1][:1] if forms else [])
    yield from (Line(((" " * len(TITLE), ""), (text, ""))) for text in fitting)


def _cautions(session: Session) -> Iterator[Line]:
    """Yield reasons to doubt the verdict, which are shown next to it."""
    others = other_programs_fact(session)
    is_unsteady = any(finding.code == "PD902" for finding in session.findings)
    changed = "step time changed by over 10 % during the run" if is_unsteady else ""
    text = f"{others}; run again without them" if others else changed
    if text:
        yield Line(((" " * len(TITLE), ""), (f"caution: {text}", "yellow")))


_SIGNALS = {"KeyboardInterrupt": "Ctrl-C", "SIGTERMException": "SIGTERM", "TrialPruned": "pruned by Optuna"}


def _facts(session: Session) -> Line:
    run, steady, word = session.run, session.steady, step_word(session)
    machine, rate, tokens, tail = wording.line(machine_text(session), 60), "", "", ""
    reason = _SIGNALS.get(run.error or "", run.error)
    error = f" ({reason})" if reason else ""
    texts = [f"{'not ended' if run.status == 'running' else run.status}{error}"] if run.status != "finished" else []
    if run.stage != "fit":
        texts.append(run.stage)
    texts += [
        wording.count(run.n_steps, word) if run.stage != "data" else "",
        wording.seconds(run.wall_s) + (_paused(session) or " in all"),
    ]
    if steady is not None:
        rate, tokens = _rate(steady.samples_per_s, "samples/s"), _rate(steady.tokens_per_s, "tokens/s")
        p50, p95 = wording.seconds(steady.step_s.p50), wording.seconds(steady.step_s.p95)
        tail = f" (p95 {p95})"
        texts += [rate, tokens, f"median {word} {p50}{tail}"]
    texts += [f"{run.world_size} ranks" if run.world_size > 1 else "", _peak(session), machine]
    texts = [wording.line(each, 60) for each in texts if each]
    for spare in (rate, " in all", machine, tail, "peak ", "median ", error):  # the least important first
        if cell_len(" · ".join(texts)) > MAX_WIDTH:
            texts = [each.replace(spare, "") for each in texts if each != spare]
    while len(texts) > 1 and cell_len(" · ".join(texts)) > MAX_WIDTH:
        del texts[-1]
    return Line(((wording.cut(" · ".join(texts), MAX_WIDTH), QUIET),))


def _rate(per_s: float | None, unit: str) -> str:
    return "" if per_s is None else f"{wording.number(round(per_s, 0 if per_s >= 10 else 2))} {unit}"


def _peak(session: Session) -> str:
    """Return the peak memory of the first device, or of the host if there is none."""
    host, devices = session.memory.host_peak_rss_bytes, session.memory.devices
    if devices:
        return f"peak memory {part_of(devices[0].peak_reserved_bytes, devices[0].total_bytes)}"
    return f"peak memory {wording.size(host)}" if host is not None else ""


def _paused(session: Session) -> str:
    """Return how long the loader probe paused the run."""
    probe = session.loader_probe
    if session.run.stage == "data" or probe is None or probe.wall_s == 0:
        return ""
    return f" ({wording.seconds(probe.wall_s)} loader probe)"


def _phases(session: Session, n_shown: int) -> Iterator[Line]:
    if session.steady is None:
        return
    rows = phases.stage_rows(session.steady, folded_below=0.0)
    shown = [row for row in rows if row.share >= _LEAST_SHARE and row.phase != "other"][:n_shown]
    rest = [row for row in rows if row not in shown and row.total_s > 0]
    device = session.steady.device
    idle = f"device idle {wording.share(device.starved_share)}" if device is not None else ""
    notes = {"data_wait": idle, "backward": _RANKS_WAIT if session.verdict.code == "PD701" else ""}
    notes = {phase: note for phase, note in notes.items() if note}
    notes = {**_modules(session.model_profile), **_part_of_phase(session, session.steady), **notes}
    cells = [(row.name, row.share, notes.get(row.phase, "")) for row in shown]
    if rest:
        names = ", ".join([row.name for row in rest if row.phase != "other"][:3])
        cells.append(("rest", sum(row.share for row in rest), names))
    width = max(11, *(len(name) + 2 for name, _, _ in cells)) if cells else 0
    yield BLANK
    for name, share, note in cells:
        yield Line(((f"  {name:<{width}}{_percent(share):>5}  ", ""), bar(share), (f"  {note}" if note else "", QUIET)))


def _modules(profile: ModelProfile | None) -> dict[str, str]:
    """Return the module that takes most of the forward pass, by phase: ``mostly encoder: 61 %``.

    Backward is left out if most of it is another's: gradients of gradients are assigned to the wrong modules.
    """
    parts = {phase: heavy_module(profile, phase) for phase in ("forward", "backward")}
    path, _ = parts["forward"]
    name = wording.cut(wording.line(path, 60), _MODULE)
    return {phase: f"mostly {name}: {_percent(share)}" for phase, (each, share) in parts.items() if each == path != ""}


def _part_of_phase(session: Session, steady: StageTimes) -> dict[str, str]:
    """Return a note for the phase of which the first line names only a part: ``of which PD104: 28 %``."""
    finding = verdict_finding(session)
    if finding is None or not finding.claims:
        return {}
    phase = max(finding.claims, key=lambda each: finding.claims[each])
    whole = steady.phases[phase].share if phase in steady.phases else 0.0
    part = _percent(finding.claims[phase] / steady.span_s) if steady.span_s > 0 else ""
    is_part = part != _percent(whole) and part in first_sentence(finding.summary)
    return {phase: f"of which {wording.line(finding.code, 16)}: {part}"} if part and is_part else {}


def _loader(session: Session) -> Iterator[Line]:
    """Yield the results of the loader probe if nothing was trained."""
    probe = session.loader_probe
    if probe is None or session.steady is not None:
        return
    yield BLANK
    yield from (Line((("  " + each, ""),)) for each in joined(loader.ceiling_facts(session), " · ", MAX_WIDTH))
    rows = sorted(loader.curve_rows(session), key=lambda row: not row.mark)[:_MAX_CURVE]  # the best and those in use
    for row in sorted(rows, key=lambda row: row.num_workers):
        rate = f"{wording.number(round(1 / row.fetch_s, 1))} batches/s" if row.fetch_s > 0 else ""
        name = wording.count(row.num_workers, "worker")
        yield Line(((f"  {name:<11}{rate:>14}  ", ""), bar(row.fill), (f"  {row.mark}" if row.mark else "", QUIET)))
    for text in loader.function_facts(probe)[:2]:
        yield Line(((wording.cut(f"  {text}", MAX_WIDTH), ""),))


def _fixes(session: Session, n_shown: int) -> Iterator[Line]:
    groups = fix_groups(session)
    if not groups:
        return
    yield BLANK
    shown = groups[:n_shown]
    notes = [f"+{len(groups) - n_shown} more"] if len(groups) > n_shown else []
    speedups = [_speedup(session, group[0]) for group in shown]
    if any(each.startswith("up to") for each in speedups):
        notes.append('"up to": at best')
    head = f"fix ({', '.join(notes)})" if notes else "fix"
    speedup_head = "speedup" if any(each.endswith("x measured") for each in speedups) else "est. speedup"
    yield Line(((f"  {head:<{_FIX + 7}}{speedup_head:<{_SPEEDUP}}{'effort':<{_EFFORT}}diagnosis", QUIET),))
    for i, (group, speedup) in enumerate(zip(shown, speedups, strict=True), start=1):
        first, fix = group[0], group[0].prescriptions[0]
        whole = code_text(fix, session, _FIX) or fix_text(fix, session, _FIX + 40 if i == 1 else _FIX)
        text = wrapped(whole, _FIX)[0]
        rest = whole[len(text) :].strip()
        yield Line((
            (f"{i} ", QUIET), (f"{wording.line(first.code, 16):<5} ", SEVERITY_STYLES[first.severity]),
            (f"{set_cell_size(text, _FIX)} {speedup:<{_SPEEDUP}}{fix.effort:<{_EFFORT}}{wording.certainty(first)}", ""),
        ))  # fmt: skip
        if rest:
            yield Line(((" " * 8 + rest, ""),))
        other = alternatives(group, session, MAX_WIDTH - 8)
        if other:
            yield Line(((" " * 8 + other, QUIET),), MORE)


def _speedup(session: Session, finding: Finding) -> str:
    """Return the speedup that a trial measured, or else the expected one."""
    unknown = "saves memory" if finding.category == "memory" else "not measured"
    return measured_speedup(session, finding) or wording.gain(finding.gain) or unknown


def _state(warnings: Sequence[tuple[str, str]]) -> Iterator[Line]:
    """Yield abnormal measurements, one line each."""
    yield Line((), LAST_GAP)
    yield from (labeled(label, wording.line(text, MAX_WIDTH - LABEL)) for label, text in warnings[:_MAX_WARNINGS])


def _warnings(session: Session) -> list[tuple[str, str]]:
    leaks = [each for each in session.memory.growth if is_leak(each)]
    # The heap is part of the host's memory.
    leaks = [each for each in leaks if each.where != "host" or all(other.where != "heap" for other in leaks)]
    shown = [group[0].code for group in fix_groups(session)[:_MAX_FIXES]]
    if session.verdict.code == "PD405" or ("PD405" in shown and any(each.suspects for each in leaks)):
        leaks = []  # stated by the headline, or by a fix that names what grows
    texts = [("growth", memory.growth_text(each)) for each in leaks]
    texts += autopilot.kept_facts(session)
    overhead = session.overhead
    is_long = session.run.wall_s >= _MIN_OVERHEAD_RUN_S
    if overhead is not None and (_slows_steps(session, overhead) or (is_long and overhead.share > _MAX_OVERHEAD_SHARE)):
        text = about.overhead_fact(session).partition(";")[0]
        while cell_len(text) > MAX_WIDTH - LABEL and ", " in text:
            text = text.rpartition(", ")[0]
        texts.append(("overhead", text))
    missing = session.ranks.missing if session.ranks is not None else ()
    texts += [("missing", f"rank {one.rank}: {one.reason}") for one in missing[:1]]
    n_failed = sum(one.status == "failed" for one in session.outcomes)
    texts += [
        ("failed", about.probes_fact(session)),
        ("failed", f"{wording.count(n_failed, 'rule')} failed" if n_failed else ""),
        ("applied", about.applied_fact(session)),
    ]
    return [(label, text) for label, text in texts if text]


def _slows_steps(session: Session, overhead: Overhead) -> bool:
    """Return whether a step pays much for measurements, although some were stopped because of that."""
    step_s = session.steady.step_s.p50 if session.steady is not None else 0.0
    return bool(overhead.backed_off) and overhead.per_step_us * 1e-6 >= _MAX_OVERHEAD_SHARE * step_s


def _commands(session: Session, place: str | None) -> Iterator[Line]:
    groups = fix_groups(session)
    if session.memory.oom is None and session.run.stage == "fit" and groups:
        tried = (group[0] for group in groups[:_MAX_FIXES] if group[0].prescriptions[0].treatment)
        if not all(measured_speedup(session, each) for each in tried):
            yield command("measure", "lightning-perf trial -- python train.py", "tries fixes in short runs")
        elif place:
            yield command("measure", f"lightning-perf compare {_quoted(place)} NEW_RUN", "after a changed run")
    yield from _details(place)
    code = wording.line(session.verdict.code or ("PD408" if session.memory.oom is not None else ""), 16)
    if code:
        yield command("explain", f"lightning-perf explain {code}", "why, and when it does not apply", EXPLAIN)


def _quoted(place: str) -> str:
    return shlex.quote(wording.line(place, 1_000))


def _details(place: str | None) -> Iterator[Line]:
    if place:
        yield command("details", f"lightning-perf report {_quoted(place)} --full", "all findings and figures")


def _percent(share: float) -> str:
    return wording.share(share, decimals=0) if share >= 0.01 else wording.share(share)
