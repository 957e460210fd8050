"""Records as notebooks show them: tables and bars in plain HTML, without scripts, in the notebook's own colors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from lightning_perf.records import Breakdown, Comparison, Finding, ModelProfile, Session, Trial
from lightning_perf.reports import document as doc
from lightning_perf.reports.sections.comparison import comparison_document
from lightning_perf.reports.sections.findings import diagnosis
from lightning_perf.reports.sections.model import model_document
from lightning_perf.reports.sections.trials import trial_parts
from lightning_perf.reports.session_document import session_document

_WIDTH = 100
_CELL = "text-align:{side};padding:1px 10px 1px 0;vertical-align:top"
_BAR = "display:inline-block;height:0.7em;background:#0072b2"  # Okabe and Ito's blue, as in the figures
_BAR_EM = 16


def to_html(record: Any) -> str | None:
    """Return a session, finding, trial, comparison, model profile or memory breakdown as HTML; None for others."""
    if isinstance(record, Session):
        return _fragment(session_document(record))
    if isinstance(record, Comparison):
        return _fragment(comparison_document(record))
    if isinstance(record, Finding):
        return _fragment(doc.Document(None, (), (doc.Section("", "", (diagnosis(record, is_open=True),)),)))
    if isinstance(record, Trial):
        return _fragment(doc.Document(None, (), (doc.Section("", "", tuple(trial_parts(record))),)))
    if isinstance(record, ModelProfile):
        return _fragment(model_document(record, record.memory))
    if isinstance(record, Breakdown):
        return _fragment(model_document(None, record))
    return None


def _fragment(document: doc.Document) -> str:
    parts = []
    if document.verdict is not None:
        parts.append(f"<p><b>PerfDoctor: {escape(document.verdict.text)}</b><br>{_facts(document.facts)}</p>")
    for section in doc.visible(document, _WIDTH):
        drawn = "".join(text for part in section.parts for text in _part(part))
        if section.is_short or not section.title:
            parts.append((f"<p><b>{escape(section.title)}</b></p>" if section.title else "") + drawn)
        else:
            parts.append(f"<details><summary><b>{escape(section.title)}</b></summary>{drawn}</details>")
    return "<div>" + "".join(parts) + "</div>"


def _part(part: doc.AnyPart) -> Iterator[str]:
    if isinstance(part, doc.Heading):
        yield f"<p><b>{escape(part.text)}</b></p>"
    elif isinstance(part, doc.Note):
        yield f"<p>{escape(part.text)}</p>"
    elif isinstance(part, doc.Facts):
        yield f"<p>{_facts(part.items)}</p>"
    elif isinstance(part, doc.Listing):
        yield "<p>" + "<br>".join(map(escape, part.items)) + "</p>"
    elif isinstance(part, doc.Pairs):
        yield "<p>" + "<br>".join(escape(f"{label}: {text}") for label, text in part.rows) + "</p>"
    elif isinstance(part, doc.Code):
        yield (f"<p>{escape(part.label)}:</p>" if part.label else "") + _code(part.lines)
    elif isinstance(part, doc.Table):
        if part.title:
            yield f"<p><b>{escape(part.title)}</b></p>"
        heads, numbers, rows = part.texts(_WIDTH)
        cells = [[escape(cell) for cell in row] for row in rows]
        if part.bars:
            heads.insert(1, "")
            numbers.insert(1, False)
            for row, length in zip(cells, part.bars, strict=False):
                row.insert(1, f'<span style="{_BAR};width:{_BAR_EM * length:.2f}em"></span>')
        yield _table(heads, numbers, cells)
    elif isinstance(part, doc.Diagnosis):
        yield from _finding(part)


def _finding(finding: doc.Diagnosis) -> Iterator[str]:
    speedup = f" (speedup {finding.speedup})" if finding.speedup else ""
    title = escape(f"{finding.severity}: {finding.title}")
    yield f"<details{' open' if finding.is_open else ''}><summary><b>{title}</b>{escape(speedup)}</summary>"
    yield f"<p>{escape(finding.summary)}</p>"
    if finding.evidence:
        cells = [[escape(name), escape(value.text), escape(basis)] for name, value, basis in finding.evidence]
        yield _table(("evidence", "", ""), (False, True, False), cells)
    for fix in finding.fixes:
        yield f"<p>Fix: {escape(fix.text)} ({escape(fix.kind)})</p>" + (_code(fix.code) if fix.code else "")
    if finding.expected:
        yield f"<p>Expected speedup: {escape(finding.expected)}, cause {escape(finding.certainty)}</p>"
    yield "</details>"


def _facts(facts: Sequence[str]) -> str:
    return escape(" · ".join(facts))


def _code(lines: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _table(heads: Sequence[str], numbers: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose cells are HTML already."""
    styles = [_CELL.format(side="right" if is_number else "left") for is_number in numbers]
    head = "".join(f'<th style="{style}">{escape(one)}</th>' for style, one in zip(styles, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td style="{style}">{one}</td>' for style, one in zip(styles, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
