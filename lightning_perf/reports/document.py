"""The document model of all reports: a session becomes a `Document` once, and each file in `render` draws it.

All text is cleaned here: one line, no control characters, limited length. Renderers only escape it for their format.
`msgspec` encodes a part as JSON with its kind in ``type``, which is what the TensorBoard tab draws.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from . import wording
from .cells import PAGE, Cell, Column, Heads, Value, text_of

MAX_ROWS = 5_000
PAGE_ROWS = 200
"""Rows that static pages show; the TensorBoard tab shows all."""

_BARS = 50
"""Characters per line that a table with bars needs."""


class Part(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    """One element of a document; the lower-case name of its class is its type in JSON.

    The first field of a part without content is empty.
    """


class Heading(Part, frozen=True):
    """A heading inside a section."""

    text: str


class Note(Part, frozen=True):
    """A paragraph."""

    text: str
    kind: Literal["note", "strong", "problem"] = "note"


class Facts(Part, frozen=True):
    """Short facts for one line. The label is shown in the tab and in HTML."""

    items: tuple[str, ...]
    label: str = ""


class Pairs(Part, frozen=True):
    """Labels and their texts, one pair per line."""

    rows: tuple[tuple[str, str], ...]


class Listing(Part, frozen=True):
    """Sentences, one per line."""

    items: tuple[str, ...]


class Code(Part, frozen=True):
    """Lines to copy, which `wording.block` has cleaned."""

    lines: tuple[str, ...]
    label: str = ""
    language: str = "python"


class Figure(Part, frozen=True):
    """A plot, by its name in `figures.FIGURES`; drawn only on pages."""

    name: str
    title: str


class Perfetto(Part, frozen=True):
    """The Perfetto viewer with the chosen trace; drawn only in the tab."""

    file: str


class Grid(NamedTuple):
    """A table as text.

    Attributes:
        heads: One per column.
        numbers: Whether each column holds numbers.
        rows: As many cells as heads.
        rest: Says how many rows are left out; empty if none are.
        bar: Index of the column of bars; None without one.
    """

    heads: list[str]
    numbers: list[bool]
    rows: list[list[str]]
    rest: str
    bar: int | None = None


class Table(Part, frozen=True):
    """Rows of cells.

    Attributes:
        heads: One per column.
        numbers: Whether each column holds numbers, which are right-aligned.
        rows: As many cells as heads.
        title: Heading above the table; empty if that of the section is enough.
        about: Sentence on what the figures refer to.
        key: Stable name of the table.
        min_widths: For each column, the shortest line that shows it, in characters.
        min_width: The shortest line that shows the table at all.
        n_brief: Rows to show where the table cannot be scrolled; 0 for all.
        n_chars: Characters of a cell to show there.
        left_out: Rows that were dropped.
        bars: Length of a bar for each row, 0…1; all start at zero.
        bar_head: Head of the column whose values the bars show.
        bars_min_width: The shortest line that shows the bars.
        is_folded: Whether pages show the table only on request.
    """

    heads: tuple[str, ...]
    numbers: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    about: str = ""
    key: str = ""
    min_widths: tuple[int, ...] = ()
    min_width: int = 0
    n_brief: int = 0
    n_chars: int = 1_000
    left_out: int = 0
    bars: tuple[float, ...] = ()
    bar_head: str = ""
    bars_min_width: int = 0
    is_folded: bool = False

    def grid(self, width: int, draw_bar: Callable[[float], str], escape: Callable[[str], str] = str) -> Grid:
        """Return the table as text for lines of ``width`` characters, with bars in the second column.

        Pages scroll: they show up to `PAGE_ROWS` rows and whole texts.
        """
        is_page = width >= PAGE
        kept = [i for i, min_width in enumerate(self.min_widths) if min_width <= width]
        rows = self.rows[: PAGE_ROWS if is_page else self.n_brief or None]
        n_chars = 1_000 if is_page else self.n_chars
        cells = [[escape(wording.cut(text_of(row[i]), n_chars)) for i in kept] for row in rows]
        heads, numbers = [self.heads[i] for i in kept], [self.numbers[i] for i in kept]
        n_more = self.left_out + len(self.rows) - len(rows)
        rest = f"{wording.ELLIPSIS} and {n_more:,} more" if n_more else ""
        if not self.bars or max(self.bars_min_width, _BARS) > width:
            return Grid(heads, numbers, cells, rest)
        drawn = [[row[0], draw_bar(length), *row[1:]] for row, length in zip(cells, self.bars, strict=False)]
        return Grid([heads[0], "", *heads[1:]], [numbers[0], False, *numbers[1:]], drawn, rest, bar=1)


class Fix(msgspec.Struct, frozen=True):
    """One recommendation of a finding."""

    text: str
    kind: str
    treatment: str
    code: tuple[str, ...]


class Diagnosis(Part, frozen=True, tag="finding"):
    """A finding with its evidence and recommendations.

    Attributes:
        remarks: Expected speedup, certainty of the cause, and a note if the finding follows from settings alone.
        evidence: Metric, measured value and basis of each fact.
        basis: How the speedup was estimated.
        is_open: Whether pages show it unfolded.
    """

    title: str
    code: str
    severity: str
    remarks: str
    summary: str
    evidence: tuple[tuple[str, Value, str], ...]
    fixes: tuple[Fix, ...]
    basis: str
    is_open: bool = False


class Verdict(Part, frozen=True):
    """The most important result: severity is that of its finding, else empty."""

    text: str
    category: str
    severity: str


AnyPart = Heading | Note | Facts | Pairs | Listing | Code | Figure | Perfetto | Table | Diagnosis | Verdict


class Section(msgspec.Struct, frozen=True):
    """A section of the report; the function `section` leaves out empty parts.

    Attributes:
        key: Stable name, also the anchor on pages.
        min_width: The shortest line that shows the section, in characters.
        is_short: Whether it stays open where long sections are folded.
    """

    key: str
    title: str
    parts: tuple[AnyPart, ...]
    min_width: int = 0
    is_short: bool = False


class Document(msgspec.Struct, frozen=True):
    """The content of a report.

    Attributes:
        verdict: Shown first; None without one.
        facts: Facts about the run, for one line.
        title: Heading of the whole document; empty if the verdict is enough.
    """

    verdict: Verdict | None
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    title: str = ""


def section(key: str, title: str, parts: Iterable[AnyPart], min_width: int = 0, is_short: bool = False) -> Section:
    """Return a section without its empty parts."""
    return Section(key, wording.line(title, 400), tuple(filter(has_content, parts)), min_width, is_short)


def has_content(part: AnyPart) -> bool:
    """Return whether the part has content."""
    return bool(getattr(part, part.__struct_fields__[0]))


def visible(document: Document, width: int, figures: Collection[str] = ()) -> Iterator[Section]:
    """Yield the sections with the parts that fit into ``width`` characters and the given figures; none is empty."""
    for each in document.sections:
        parts = tuple(
            part
            for part in each.parts
            if not (isinstance(part, Table) and part.min_width > width)
            and not (isinstance(part, Figure) and part.name not in figures)
        )
        if parts and each.min_width <= width:
            yield msgspec.structs.replace(each, parts=parts)


def heading(text: str) -> Heading:
    """Return a heading of untrusted text."""
    return Heading(wording.line(text, 400))


def note(text: str, kind: Literal["note", "strong", "problem"] = "note") -> Note:
    """Return a paragraph of untrusted text."""
    return Note(wording.line(text, 2_000), kind)


def facts(items: Iterable[str], label: str = "") -> Facts:
    """Return the facts that are not empty."""
    return Facts(_cleaned(items), label)


def listing(items: Iterable[str]) -> Listing:
    """Return the sentences that are not empty."""
    return Listing(_cleaned(items))


def pairs(rows: Iterable[tuple[str, str]]) -> Pairs:
    """Return the pairs whose second text is not empty."""
    return Pairs(tuple((wording.line(label, 80), wording.line(text, 1_000)) for label, text in rows if text))


def table(
    heads: Heads,
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    bars: str = "",
    full: float | None = None,
    **options: Any,
) -> Table:
    """Return a table without the columns that are empty in every row; for other arguments see `Table`.

    ``rows`` have a cell per head. ``bars`` is the head of a column whose values are also drawn as bars, ``full`` the
    value of a bar of full length; None for the largest of the column.
    """
    cells = [[wording.line(cell, 1_000) if isinstance(cell, str) else cell for cell in row] for row in rows[:MAX_ROWS]]
    kept = [i for i in range(len(heads)) if any(text_of(row[i]) for row in cells)]
    columns = [Column(head) if isinstance(head, str) else head for head in heads]
    by = next((i for i in kept if bars and columns[i].name == bars), None)
    return Table(
        heads=tuple(columns[i].name for i in kept),
        numbers=tuple(any(isinstance(row[i], Value) for row in cells) for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in cells),
        title=wording.line(title, 400),
        min_widths=tuple(columns[i].min_width for i in kept),
        left_out=len(rows) - len(cells),
        bars=() if by is None else _lengths([row[by] for row in cells], full),
        bar_head=bars if by is not None else "",
        **options,
    )


def _lengths(cells: Sequence[Cell], full: float | None) -> tuple[float, ...]:
    values = [cell.value if isinstance(cell, Value) else None for cell in cells]
    known = [value if value is not None and value > 0 and math.isfinite(value) else 0.0 for value in values]
    longest = full or max(known) or 1.0
    return tuple(min(value / longest, 1.0) for value in known)


def _cleaned(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(wording.line(item, 600) for item in items if item)
