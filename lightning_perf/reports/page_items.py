"""What the parts of an HTML page are made of; the template draws each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Facts(NamedTuple):
    """Short statements."""

    facts: Sequence[str]


class Statements(NamedTuple):
    """Sentences, one below the other."""

    lines: Sequence[str]


class Table(NamedTuple):
    """Text in rows; ``alignments`` has ``l`` or ``r`` for each column. ``bars`` are start and length, 0…1, by row."""

    heads: Sequence[str]
    alignments: str
    rows: Sequence[Sequence[str]]
    bars: Sequence[tuple[float, float]] = ()


class Figure(NamedTuple):
    """The place of a figure, by its name in ``figures.FIGURES``."""

    name: str
    title: str


class Code(NamedTuple):
    """Lines to paste."""

    label: str
    lines: Sequence[str]


class Heading(NamedTuple):
    """A heading within a part."""

    text: str


class Folded(NamedTuple):
    """A table that opens on a click."""

    title: str
    table: Table


class Diagnosis(NamedTuple):
    """A finding, whose evidence opens on a click."""

    code: str
    title: str
    severity: str
    remarks: str
    summary: str
    evidence: Table | None
    fixes: Sequence[tuple[str, str, Sequence[str]]]
    gain: str
    is_open: bool


Item = Facts | Statements | Table | Figure | Code | Heading | Folded | Diagnosis


class Part(NamedTuple):
    """A part of the page with a heading that the contents link to."""

    id: str
    title: str
    items: list[Item]
