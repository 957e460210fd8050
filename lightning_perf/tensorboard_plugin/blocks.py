"""What a view is made of: plain data that the page draws without knowing what it means.

All text of users goes through ``wording``: one line, no control characters, cut. The page sets it as text, never as
markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_perf.records import Finding
from lightning_perf.reports import summary, wording

Block = dict[str, Any]
"""One part of a view; ``type`` says which."""

Cell = str | list[Any]
"""Text, or ``[text, value]`` where columns are sorted by a value that is not the text."""

MOST_ROWS = 5_000
_LONGEST_CELL = 1_000


def heading(text: str) -> Block:
    return {"type": "heading", "text": wording.line(text, 400)}


def note(text: str, kind: str = "note") -> Block:
    """A paragraph; ``kind`` is ``note`` or ``problem``."""
    return {"type": "note", "kind": kind, "text": wording.line(text, 2_000)}


def facts(rows: Iterable[tuple[str, str]]) -> Block:
    """Labels with what they say."""
    return {"type": "facts", "rows": [[wording.line(a, 80), wording.line(b, 1_000)] for a, b in rows if b]}


def code(lines: Sequence[str], label: str = "") -> Block:
    """Something to paste."""
    return {"type": "code", "label": label, "text": "\n".join(lines)}


def figure(name: str, title: str) -> Block:
    """A figure that the page asks for by name."""
    return {"type": "figure", "name": name, "title": title}


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], about: str = "", key: str = "") -> Block:
    """Rows below heads; columns whose cells hold values are set to the right and sorted by them.

    Args:
        title: Above it.
        heads: Of the columns.
        rows: Cells, as many as heads each.
        about: What the figures are of; under the title.
        key: Names the table for those who look for it.
    """
    cut = [[_cell(cell) for cell in row] for row in rows[:MOST_ROWS]]
    kept = [i for i in range(len(heads)) if not rows or any(_told(row[i]) for row in cut)]
    numbers = [any(isinstance(row[i], list) for row in cut) for i in kept]
    left_out = len(rows) - len(cut)
    return {
        "type": "table", "key": key, "title": wording.line(title, 400), "about": about,
        "heads": [heads[i] for i in kept], "numbers": numbers, "rows": [[row[i] for i in kept] for row in cut],
        "left_out": left_out,
    }  # fmt: skip


def seconds(value: float | None) -> Cell:
    return _valued(value, wording.seconds)


def size(value: float | None) -> Cell:
    return _valued(value, wording.size)


def share(value: float | None) -> Cell:
    return _valued(value, wording.share)


def number(value: float | None) -> Cell:
    return _valued(value, wording.number)


def finding(one: Finding) -> Block:
    """A finding with all that it rests on."""
    return {
        "type": "finding",
        "code": wording.line(one.code, 16),
        "title": summary.finding_title(one),
        "severity": one.severity,
        "confidence": one.confidence,
        "category": wording.line(one.category, 40),
        "gain": summary.gain_text(one),
        "summary": wording.line(one.summary, 1_000),
        "evidence": [
            {
                "metric": wording.line(each.metric, 200),
                "text": wording.evidence_value(each),
                "value": _finite(each.value),
                "basis": wording.evidence_basis(each),
            }
            for each in one.evidence
        ],
        "fixes": [
            {
                "text": wording.line(each.summary, 600),
                "kind": f"{each.effort}, {each.safety}",
                "treatment": wording.line(each.treatment, 60),
                "code": "\n".join(wording.block(each.code)),
            }
            for each in one.prescriptions
        ],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _valued(value: float | None, write: Any) -> Cell:
    if value is None or not math.isfinite(value):
        return ["", None]
    return [write(value), value]


def _cell(cell: Cell) -> Cell:
    return wording.line(cell, _LONGEST_CELL) if isinstance(cell, str) else cell


def _told(cell: Cell) -> bool:
    return bool(cell) if isinstance(cell, str) else cell[1] is not None
