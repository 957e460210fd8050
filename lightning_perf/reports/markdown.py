"""The diagnosis as Markdown: for TensorBoard's text tab and for pull requests."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from lightning_perf.records import Comparison, Finding, Session, StageTimes, Trial

from . import comparison_rows, host_rows, loader_rows, memory_rows, model_rows, rank_rows, summary, trial_rows, wording

_BAR_WIDTH = 20
# Escaped where they mean something inside a line, and the marks of lists and headings where a line begins.
_SPECIAL = re.compile(r"[\\`*_\[\]|]|^[-+#]")
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
# Signs that only some Markdowns give a meaning to, and that others would show with their backslash.
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "~": "&#126;", "$": "&#36;"})


def to_markdown(session: Session, show_all: bool = False, is_folded: bool = False) -> str:
    """The whole diagnosis; verdict and table come first because TensorBoard's card shows about 500 pixels.

    Args:
        session: The session.
        show_all: Also say of each rule whether it passed or why it was skipped.
        is_folded: Fold away what is long, as pull requests can (``<details>``); TensorBoard would show the tags.
    """
    parts = [f"**PerfDoctor: {escape(summary.verdict_text(session))}**", _facts(summary.run_facts(session))]
    if session.steady is not None:
        parts += _stage(summary.steady_title(session, session.steady), session.steady, summary.step_word(session))
    findings = summary.ordered_findings(session)
    if findings:
        parts += ["### Findings", _findings_table(findings)]
        for finding in findings:
            title = f"{finding.severity}: {summary.finding_title(finding)}"
            parts += _part(title, _finding(finding), is_folded)
    for trial in session.trials:
        parts += _trial(trial)
    if session.validation is not None:
        stage = _stage(summary.validation_title(session.validation), session.validation, "batch")
        parts += _part("Validation", stage, is_folded)
    for title, told in (
        ("Ranks", _ranks(session)),
        ("Loader", _loader(session)),
        ("Memory", _memory(session)),
        ("Host and compiler", _host(session)),
        ("Arithmetic", _model(session)),
        ("About this measurement", _footer(session, show_all)),
    ):
        parts += _part(title, told, is_folded)
    return "\n\n".join(parts) + "\n"


def _part(title: str, told: Iterator[str], is_folded: bool) -> list[str]:
    parts = list(told)
    return [_folded(html.escape(title), "\n\n".join(parts))] if is_folded and parts else parts


def comparison_to_markdown(comparison: Comparison) -> str:
    """Two sessions beside each other, for a pull request: what is long is folded away."""
    return "\n\n".join(_comparison(comparison)) + "\n"


def escape(text: str) -> str:
    """Foreign text so that it shows as it stands: neither Markdown nor HTML."""
    escaped = _SPECIAL.sub(lambda match: "\\" + match[0], text.translate(_ENTITIES))
    return _NUMBERED.sub(r"\1\\\2", escaped)


def _stage(title: str, stage: StageTimes, word: str) -> Iterator[str]:
    yield f"### {title}"
    yield _facts([*summary.rate_facts(stage, word), *filter(None, [summary.device_fact(stage)])])
    rows = summary.stage_rows(stage)
    if not rows:
        return
    totals = wording.seconds_column([row.total_s for row in rows])
    p50s = wording.seconds_column([row.p50_s for row in rows])
    bars = ["▇" * length for _, length in summary.bar_spans(rows, _BAR_WIDTH)]
    cells = [
        (escape(row.name), bar, wording.share(row.share, decimals=1), total, p50)
        for row, bar, total, p50 in zip(rows, bars, totals, p50s, strict=True)
    ]
    yield _table(("phase", "", "share", "total", f"p50 a {word}"), "llrrr", cells)


def _loader(session: Session) -> Iterator[str]:
    probe = session.loader_probe
    if probe is None:
        return
    yield f"### {escape(loader_rows.loader_title(probe))}"
    ceilings = loader_rows.ceiling_facts(session)
    if ceilings:
        yield _facts(ceilings)
    rows = loader_rows.curve_rows(session)
    if rows:
        yield _table(
            loader_rows.CURVE_HEADS,
            "rlrrl",
            [tuple(map(escape, row)) for row in loader_rows.curve_cells(rows, _BAR_WIDTH, "▇")],
        )
    facts = [f"{name}: {told}" for name, told in loader_rows.function_rows(probe)] + loader_rows.sample_facts(probe)
    if facts:
        yield "\n".join(f"- {escape(fact)}" for fact in facts)


def _memory(session: Session) -> Iterator[str]:
    breakdown = session.memory.breakdown
    rows = memory_rows.memory_rows(breakdown) if breakdown is not None else []
    modules = memory_rows.module_facts(breakdown) if breakdown is not None else []
    phases = memory_rows.phase_facts(session)
    facts = [f"{label}: {' · '.join(each)}" for label, each in (("by module", modules), ("in a step", phases)) if each]
    facts += [*memory_rows.growth_facts(session), *filter(None, [memory_rows.headroom_fact(session.memory.headroom)])]
    if breakdown is not None and rows:
        yield f"### {escape(memory_rows.memory_title(breakdown))}"
        cells = [(row.name, wording.size(row.n_bytes), wording.share(row.share, decimals=1), escape(row.note))
                 for row in rows]  # fmt: skip
        yield _table(("component", "bytes", "share", "how known"), "lrrl", cells)
    elif facts:
        yield "### Memory"
    if facts:
        yield "\n".join(f"- {escape(fact)}" for fact in facts)


def _ranks(session: Session) -> Iterator[str]:
    ranks = session.ranks
    if ranks is None or not rank_rows.is_worth_showing(ranks):
        return
    yield f"### {escape(rank_rows.rank_title(ranks))}"
    heads, *rows = rank_rows.rank_table(ranks)
    yield _table(heads, "l" + "r" * (len(heads) - 1), [[escape(cell) for cell in row] for row in rows])
    facts = [*filter(None, [rank_rows.rank_strip(ranks)]), *rank_rows.rank_facts(ranks)]
    if facts:
        yield "\n".join(f"- {escape(fact)}" for fact in facts)


def _host(session: Session) -> Iterator[str]:
    calls, watch = session.sync_calls, session.compiler
    if lines := host_rows.line_rows(session):
        yield f"### {host_rows.LINES_TITLE}"
        yield _table(host_rows.LINE_HEADS, host_rows.LINE_ALIGNS, [list(map(escape, row)) for row in lines])
    rows = host_rows.sync_rows(calls) if calls is not None else []
    if calls is not None and rows:
        yield f"### {escape(host_rows.sync_title(calls))}"
        yield _table(host_rows.SYNC_HEADS, "llrrl", [list(map(escape, row)) for row in rows])
        note = host_rows.sync_note(calls)
        if note:
            yield escape(note)
    if watch is not None:
        yield f"### {escape(host_rows.compiler_title(watch))}"
        facts = host_rows.compiler_facts(watch)
        if facts:
            yield _facts(facts)
        rows = host_rows.compiler_rows(watch)
        if rows:
            yield _table(host_rows.COMPILER_HEADS, "llrl", [list(map(escape, row)) for row in rows])
    facts = host_rows.host_facts(session)
    if facts:
        yield _facts(facts)


def _trial(trial: Trial) -> Iterator[str]:
    yield f"### {escape(trial_rows.trial_title(trial))}"
    yield f"**{escape(trial_rows.headline(trial))}**"
    yield _facts(trial_rows.trial_facts(trial))
    ladder, alone = trial_rows.ladder_rows(trial), trial_rows.alone_rows(trial)
    if len(ladder) > 1:
        yield _table(("rung", "speed-up", "on top", "predicted", "verdict"), "lrrrl", [_rung(row) for row in ladder])
    if alone:
        yield _table(("alone", "speed-up", "", "predicted", "verdict"), "lrrrl", [_rung(row) for row in alone])
    batches = trial_rows.batch_fact(trial)
    if batches:
        yield _facts([batches])
    out = trial_rows.left_out(trial)
    if out:
        yield _table(("left out", "why"), "ll", [list(map(escape, row)) for row in out])
    for label, language, lines in trial_rows.pasted(trial):
        yield f"{label[0].upper()}{label[1:]}:"
        yield _fenced(lines, language)


def _comparison(comparison: Comparison) -> Iterator[str]:
    rows = comparison_rows
    yield f"**PerfDoctor: {escape(rows.headline(comparison))}**"
    yield _facts(rows.facts(comparison))
    if comparison.cautions:
        yield "\n".join(f"- {escape(caution)}" for caution in rows.cautions(comparison))
    yield _table(rows.TIME_HEADS, "lrrrrl", [list(map(escape, row)) for row in rows.time_rows(comparison)])
    told = rows.no_interval(comparison)
    if told:
        yield escape("; ".join(told))
    findings = rows.finding_rows(comparison)
    if findings:
        yield "### Findings that appeared (+), went (−) or changed"
        cells = [(f"{row.sign} {row.name}".strip(), row.base, row.new, row.text) for row in findings]
        yield _table(rows.FINDING_HEADS, "llll", [list(map(escape, row)) for row in cells])
    same = rows.stayed(comparison)
    if same:
        yield escape(f"As before: {same}")
    for title, differences in (("Settings that differ", comparison.settings),
                               ("Environment that differs", comparison.environment)):  # fmt: skip
        if differences:
            shown = [list(map(escape, row)) for row in rows.difference_rows(differences)]
            yield _folded(f"{title} ({len(differences)})", _table(rows.DIFFERENCE_HEADS, "lll", shown))
    figures = rows.figure_rows(comparison)
    if figures:
        table = _table(rows.FIGURE_HEADS, "lrrr", [list(map(escape, row)) for row in figures])
        yield _folded("Memory and other figures", table)
    if comparison.trials:
        shown = [list(map(escape, row)) for row in rows.trial_rows(comparison)]
        yield _folded("What trials measured", _table(rows.TRIAL_HEADS, "lll", shown))


def _folded(title: str, content: str) -> str:
    """A part that pull requests show on a click."""
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _rung(row: trial_rows.LadderRow) -> list[str]:
    speedup = f"{row.speedup} ({row.interval})" if row.interval else row.speedup
    verdict = ", ".join(filter(None, [row.verdict, f"losses {row.losses}" if row.losses else "", row.peak]))
    return [escape(cell) for cell in (row.name, speedup, row.step_gain, row.predicted, verdict)]


def _model(session: Session) -> Iterator[str]:
    profile = session.model_profile
    if profile is None or profile.forward_flops is None:
        return
    yield f"### {escape(model_rows.title(profile))}"
    told = (
        model_rows.facts(profile),
        model_rows.utilisation_facts(profile.utilisation),
        model_rows.bound_facts(profile),
    )
    yield "\n".join(f"- {_facts(facts)}" for facts in told if facts)
    for table in (model_rows.module_table(profile), model_rows.operator_table(profile)):
        if table is not None:
            yield _table(table.heads, table.alignments, [list(map(escape, row)) for row in table.rows])


def _findings_table(findings: Sequence[Finding]) -> str:
    cells = []
    for finding in findings:
        fix = escape(wording.line(finding.prescriptions[0].summary, 160)) if finding.prescriptions else ""
        title = escape(summary.finding_title(finding))
        cells.append((finding.severity, title, wording.gain(finding.gain), finding.confidence, fix))
    return _table(("severity", "finding", "speed-up", "confidence", "fix"), "lllll", cells)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"#### {finding.severity}: {escape(summary.finding_title(finding))}"
    likely = " This comes from the settings alone: likely, not yet measured." if finding.is_preflight else ""
    yield escape(wording.line(finding.summary, 600)) + likely
    if finding.evidence:
        yield _evidence(finding)
    for prescription in finding.prescriptions:
        kind = f"({prescription.effort}, {prescription.safety})"
        yield f"**Fix:** {escape(wording.line(prescription.summary, 300))} {kind}"
        code = wording.block(prescription.code)
        if code:
            yield _fenced(code)
    expected = summary.gain_text(finding)
    if expected:
        yield f"**Gain:** {escape(expected)} (confidence {finding.confidence})"


def _evidence(finding: Finding) -> str:
    lines = []
    for fact in finding.evidence:
        basis = wording.evidence_basis(fact)
        told = f" ({escape(basis)})" if basis else ""
        lines.append(f"- {escape(wording.line(fact.metric, 120))}: {escape(wording.evidence_value(fact))}{told}")
    return "\n".join(lines)


def _footer(session: Session, show_all: bool) -> Iterator[str]:
    shown = summary.footer_facts(session, show_all)
    if shown:
        yield "### About this measurement"
        yield "\n".join(f"- {label}: {escape(fact)}" for label, fact in shown)
    if not show_all:
        return
    if session.outcomes:
        yield "### Rules"
        yield _table(("rule", "status", "reason"), "lll", [list(map(escape, r)) for r in summary.outcome_rows(session)])
    if session.missing:
        yield "### Not measured"
        yield _table(("what", "why"), "ll", [list(map(escape, row)) for row in summary.missing_rows(session)])


def _facts(facts: Sequence[str]) -> str:
    return escape(" · ".join(facts))


def _table(heads: Sequence[str], alignments: str, rows: Sequence[Sequence[str]]) -> str:
    rule = ["---:" if alignment == "r" else "---" for alignment in alignments]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def _fenced(lines: list[str], language: str = "python") -> str:
    # A fence longer than any inside, so that nothing in the code can close it.
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])
