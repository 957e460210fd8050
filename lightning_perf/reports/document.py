"""The document model of all reports: a session becomes a `Document` once, and each file in `render` draws it.

All text is cleaned here: one line, no control characters, limited length. Renderers only escape it for their format.
`msgspec` encodes a part as JSON with its kind in ``type``, which is what the TensorBoard tab draws.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from . import wording
from .cells import Cell, Column, Heads, Value, text_of

MAX_ROWS = 5_000


class Part(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """One element of a document; the lower-case name of its class is its type in JSON."""


class Heading(Part, frozen=True):
    """A heading inside a section."""

    text: str


class Note(Part, frozen=True):
    """A paragraph."""

    text: str
    kind: Literal["note", "strong", "problem"] = "note"


class Facts(Part, frozen=True):
    """Short facts for one line. The label is shown only in the tab."""

    items: tuple[str, ...]
    label: str = ""


class Pairs(Part, frozen=True):
    """Labels and their texts, one pair per line."""

    rows: tuple[tuple[str, str], ...]


class Listing(Part, frozen=True):
    """Sentences, one per line."""

    items: tuple[str, ...]


class Code(Part, frozen=True):
    """Lines to copy."""

    lines: tuple[str, ...]
    label: str = ""
    language: str = "python"


class Figure(Part, frozen=True):
    """A plot, by its name in `figures.FIGURES`; drawn only on pages."""

    name: str
    title: str
    is_pair: bool = False


class Perfetto(Part, frozen=True):
    """The Perfetto viewer with the chosen trace; drawn only in the tab."""

    file: str


class Table(Part, frozen=True):
    """Rows of cells.

    Attributes:
        heads: One per column.
        numbers: Whether each column holds numbers, which are right-aligned.
        rows: As many cells as heads.
        title: Above the table; empty if the section's title says it.
        about: What the figures refer to.
        key: Stable name of the table.
        rooms: Columns of text that a line must have for each column to be shown.
        room: The same for the whole table.
        n_brief: Rows to show where the table cannot be scrolled; 0 for all.
        n_chars: Characters of a cell to show there.
        left_out: Rows that were dropped.
        bars: Length of a bar for each row, 0…1; all start at zero.
        is_folded: Whether pages show the table only on request.
    """

    heads: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    about: str = ""
    key: str = ""
    rooms: tuple[int, ...] = ()
    room: int = 0
    n_brief: int = 0
    n_chars: int = 1_000
    left_out: int = 0
    bars: tuple[float, ...] = ()
    is_folded: bool = False

    def texts(self, width: int, n_rows: int | None = None) -> tuple[list[str], list[bool], list[list[str]]]:
        """Return heads, number flags and rows as text for a form that is `width` columns wide and cannot scroll."""
        kept = [i for i, room in enumerate(self.rooms) if room <= width]
        rows = self.rows[: self.n_brief or n_rows]
        cells = [[wording.cut(text_of(row[i]), self.n_chars) for i in kept] for row in rows]
        return [self.heads[i] for i in kept], [self.numbers[i] for i in kept], cells


class Fix(msgspec.Struct, frozen=True):
    """One recommendation of a finding."""

    text: str
    kind: str
    treatment: str
    code: tuple[str, ...]


class Diagnosis(Part, frozen=True, tag="finding"):
    """A finding with its evidence and recommendations.

    Attributes:
        evidence: Metric, measured value, basis.
        speedup: Short form, e.g. ``1.7–2.1x``; empty if none is expected.
        certainty: How certain the cause is.
        basis: What the speedup was estimated from.
        remark: Set for a finding that rests on settings alone.
    """

    code: str
    title: str
    severity: str
    certainty: str
    summary: str
    evidence: tuple[tuple[str, Value, str], ...]
    fixes: tuple[Fix, ...]
    speedup: str
    basis: str
    remark: str
    is_open: bool = False

    @property
    def expected(self) -> str:
        """The speedup with its basis; empty if none is expected."""
        return f"{self.speedup} ({self.basis})" if self.speedup and self.basis else self.speedup


class Verdict(Part, frozen=True):
    """The most important result: severity is that of its finding, else empty."""

    text: str
    category: str
    severity: str


AnyPart = (
    Heading | Note | Facts | Pairs | Listing | Code | Figure | Perfetto | Table | Diagnosis | Verdict
)  # fmt: skip


class Section(msgspec.Struct, frozen=True):
    """A subject of the report. Parts that say nothing are dropped by `section`.

    Attributes:
        key: Stable name, also the anchor on pages.
        title: Its heading.
        parts: In order.
        room: Columns that a line must have for the section to be shown.
        is_short: Whether it stays open where long sections are folded.
    """

    key: str
    title: str
    parts: tuple[AnyPart, ...]
    room: int = 0
    is_short: bool = False


class Document(msgspec.Struct, frozen=True):
    """The content of a report.

    Attributes:
        verdict: Shown first; None without one.
        facts: Facts about the run, for one line.
        sections: In order.
        title: Heading of the whole document; empty if the verdict is enough.
    """

    verdict: Verdict | None
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    title: str = ""


def section(key: str, title: str, parts: Iterable[AnyPart], room: int = 0, is_short: bool = False) -> Section:
    """Return a section without its empty parts."""
    return Section(key, wording.line(title, 400), tuple(filter(says_something, parts)), room, is_short)


def says_something(part: AnyPart) -> bool:
    """Return whether the part has content."""
    if isinstance(part, Note | Heading):
        return bool(part.text)
    if isinstance(part, Facts | Listing):
        return bool(part.items)
    if isinstance(part, Pairs | Table):
        return bool(part.rows)
    return bool(part.lines) if isinstance(part, Code) else True


def visible(document: Document, width: int, figures: Collection[str] = ()) -> Iterator[Section]:
    """Yield the sections with the parts that a static form shows; empty sections are left out.

    Args:
        document: The document.
        width: Columns of text per line.
        figures: Names of the figures that can be drawn.
    """
    for each in document.sections:
        parts = tuple(
            part
            for part in each.parts
            if (part.room <= width if isinstance(part, Table) else not isinstance(part, Figure) or part.name in figures)
        )
        if parts and each.room <= width:
            yield msgspec.structs.replace(each, parts=parts)


def heading(text: str) -> Heading:
    """Return a heading of foreign text."""
    return Heading(wording.line(text, 400))


def note(text: str, kind: Literal["note", "strong", "problem"] = "note") -> Note:
    """Return a paragraph of foreign text."""
    return Note(wording.line(text, 2_000), kind)


def facts(items: Iterable[str], label: str = "") -> Facts:
    """Return the facts that are not empty."""
    return Facts(_told(items), label)


def listing(items: Iterable[str]) -> Listing:
    """Return the sentences that are not empty."""
    return Listing(_told(items))


def pairs(rows: Iterable[tuple[str, str]]) -> Pairs:
    """Return the pairs whose second text is not empty."""
    return Pairs(tuple((wording.line(label, 80), wording.line(text, 1_000)) for label, text in rows if text))


def code(lines: Sequence[str], label: str = "", language: str = "python") -> Code:
    """Return lines to copy, which the caller has cleaned with `wording.block`."""
    return Code(tuple(lines), label, language)


def table(
    heads: Heads,
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    about: str = "",
    key: str = "",
    room: int = 0,
    n_brief: int = 0,
    n_chars: int = 1_000,
    bars: Sequence[float] = (),
    is_folded: bool = False,
) -> Table:
    """Return a table without the columns that are empty in every row; for the arguments see `Table`."""
    cells = [[wording.line(cell, 1_000) if isinstance(cell, str) else cell for cell in row] for row in rows[:MAX_ROWS]]
    kept = [i for i in range(len(heads)) if any(text_of(row[i]) for row in cells)]
    columns = [Column(head) if isinstance(head, str) else head for head in heads]
    return Table(
        heads=tuple(columns[i].name for i in kept),
        numbers=tuple(any(isinstance(row[i], Value) for row in cells) for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in cells),
        title=wording.line(title, 400),
        about=about,
        key=key,
        rooms=tuple(columns[i].room for i in kept),
        room=room,
        n_brief=n_brief,
        n_chars=n_chars,
        left_out=len(rows) - len(cells),
        bars=tuple(bars),
        is_folded=is_folded,
    )


def _told(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(wording.line(item, 600) for item in items if item)
