"""Records as notebooks show them: tables and bars in plain HTML, without scripts, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from lightning_perf.records import Comparison, Finding, Session, StageTimes, Trial

from . import comparison_rows, summary, trial_rows, wording

_CELL = "text-align:{side};padding:1px 10px 1px 0;vertical-align:top"
_BAR = "display:inline-block;height:0.7em;background:#0072b2"  # Okabe and Ito's blue, as in the figures
_BAR_EM = 16


def to_html(record: Any) -> str | None:
    """A session, finding, trial or comparison as a fragment of HTML; None for other records."""
    if isinstance(record, Session):
        return _block(_session(record))
    if isinstance(record, Finding):
        return _block(_finding(record, is_open=True))
    if isinstance(record, Trial):
        return _block(_trial(record))
    if isinstance(record, Comparison):
        return _block(_comparison(record))
    return None


def _block(parts: Iterator[str]) -> str:
    return "<div>" + "".join(parts) + "</div>"


def _session(session: Session) -> Iterator[str]:
    yield f"<p><b>PerfDoctor: {escape(summary.verdict_text(session))}</b><br>{_facts(summary.run_facts(session))}</p>"
    if session.steady is not None:
        word = summary.step_word(session)
        yield from _stage(summary.steady_title(session, session.steady), session.steady, word)
    for finding in summary.ordered_findings(session):
        yield from _finding(finding)
    for trial in session.trials:
        yield from _trial(trial)
    shown = summary.footer_facts(session, show_all=False)
    if shown:
        yield "<p>" + "<br>".join(escape(f"{label}: {fact}") for label, fact in shown) + "</p>"


def _stage(title: str, stage: StageTimes, word: str) -> Iterator[str]:
    yield f"<p><b>{escape(title)}</b><br>{_facts(summary.rate_facts(stage, word))}</p>"
    rows = summary.stage_rows(stage)
    if not rows:
        return
    totals = wording.seconds_column([row.total_s for row in rows])
    p50s = wording.seconds_column([row.p50_s for row in rows])
    cells = [
        (escape(row.name), f'<span style="{_BAR};width:{_BAR_EM * row.share:.2f}em"></span>',
         *map(escape, (wording.share(row.share, decimals=1), total, p50)))
        for row, total, p50 in zip(rows, totals, p50s, strict=True)
    ]  # fmt: skip
    yield _table(("", "", "share", "total", f"p50 a {word}"), "llrrr", cells)


def _finding(finding: Finding, is_open: bool = False) -> Iterator[str]:
    title = f"{finding.severity}: {summary.finding_title(finding)}"
    expected = wording.gain(finding.gain)
    gain = f" ({expected} faster)" if expected else ""
    yield f"<details{' open' if is_open else ''}><summary><b>{escape(title)}</b>{escape(gain)}</summary>"
    yield f"<p>{escape(wording.line(finding.summary, 600))}</p>"
    if finding.evidence:
        cells = [
            tuple(map(escape, (wording.line(fact.metric, 120), wording.evidence_value(fact),
                               wording.evidence_basis(fact))))
            for fact in finding.evidence
        ]  # fmt: skip
        yield _table(("evidence", "", ""), "lrl", cells)
    for prescription in finding.prescriptions:
        kind = f" ({prescription.effort}, {prescription.safety})"
        yield f"<p>Fix: {escape(wording.line(prescription.summary, 300) + kind)}</p>"
        code = wording.block(prescription.code)
        if code:
            yield _code(code)
    told = summary.gain_text(finding)
    if told:
        yield f"<p>Gain: {escape(told)} (confidence {escape(finding.confidence)})</p>"
    yield "</details>"


def _trial(trial: Trial) -> Iterator[str]:
    yield f"<p><b>{escape(trial_rows.headline(trial))}</b><br>{escape(trial_rows.trial_title(trial))}<br>"
    yield f"{_facts(trial_rows.trial_facts(trial))}</p>"
    ladder, alone = trial_rows.ladder_rows(trial), trial_rows.alone_rows(trial)
    for name, rows in (("ladder", ladder if len(ladder) > 1 else []), ("alone", alone)):
        if rows:
            yield _table((name, *trial_rows.HEADS[1:]), "lrrrrrll", [tuple(map(escape, row)) for row in rows])
    out = trial_rows.left_out(trial)
    if out:
        yield _table(("left out", "why"), "ll", [tuple(map(escape, row)) for row in out])
    for label, _, lines in trial_rows.pasted(trial):
        yield f"<p>{escape(label)}:</p>{_code(lines)}"


def _comparison(comparison: Comparison) -> Iterator[str]:
    rows = comparison_rows
    yield f"<p><b>{escape(rows.headline(comparison))}</b><br>{_facts(rows.facts(comparison))}</p>"
    for told in (*rows.cautions(comparison), *rows.no_interval(comparison)):
        yield f"<p>{escape(told)}</p>"
    found = [(f"{row.sign} {row.name}".strip(), row.base, row.new, row.text) for row in rows.finding_rows(comparison)]
    tables: tuple[tuple[Sequence[str], str, Sequence[Sequence[str]]], ...] = (
        (rows.TIME_HEADS, "lrrrrl", rows.time_rows(comparison)),
        (rows.FIGURE_HEADS, "lrrr", rows.figure_rows(comparison)),
        (rows.FINDING_HEADS, "llll", found),
        (rows.DIFFERENCE_HEADS, "lll", rows.difference_rows((*comparison.settings, *comparison.environment))),
        (rows.TRIAL_HEADS, "lll", rows.trial_rows(comparison)),
    )
    for heads, sides, cells in tables:
        if cells:
            yield _table(heads, sides, [tuple(map(escape, row)) for row in cells])


def _facts(facts: Sequence[str]) -> str:
    return escape(" · ".join(facts))


def _code(lines: list[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _table(heads: Sequence[str], sides: str, rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML already."""
    styles = [_CELL.format(side="right" if side == "r" else "left") for side in sides]
    head = "".join(f'<th style="{style}">{escape(one)}</th>' for style, one in zip(styles, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td style="{style}">{one}</td>' for style, one in zip(styles, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
