"""The cells and columns of tables."""

import math
from collections.abc import Callable, Sequence

import msgspec

from . import wording

PAGE = 150
"""Characters per line that only web pages have: the HTML report and the TensorBoard tab."""

TAB = 1_000
"""Characters per line that only the TensorBoard tab has, where tables can be sorted and filtered."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A cell that is a number: its text, and the number to sort by (None if unknown)."""

    text: str
    value: float | None = None


class Column(msgspec.Struct, frozen=True):
    """The head of a column that is shown only where a line has at least `min_width` characters."""

    name: str
    min_width: int = 0


Cell = str | Value
Heads = Sequence[str | Column]
Rows = list[tuple[Cell, ...]]


def text_of(cell: Cell) -> str:
    """Return the text of a cell."""
    return cell if isinstance(cell, str) else cell.text


def seconds(value: float | None) -> Value:
    """Return a cell of seconds."""
    return _valued(value, wording.seconds)


def size(value: float | None) -> Value:
    """Return a cell of bytes."""
    return _valued(value, wording.size)


def share(value: float | None) -> Value:
    """Return a cell of a fraction, in percent."""
    return _valued(value, wording.share)


def number(value: float | None) -> Value:
    """Return a cell of a number without unit."""
    return _valued(value, wording.number)


def _valued(value: float | None, write: Callable[[float | None], str]) -> Value:
    return Value("") if value is None or not math.isfinite(value) else Value(write(value), value)
