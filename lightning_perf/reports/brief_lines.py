"""Lines of brief reports: their parts, their drawing, and the order in which they are left out."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from . import wording
from .render.console import QUIET

MAX_LINES = 15
MAX_WIDTH = 80
TITLE = "PerfDoctor  "
_BAR = 30
_BAR_STYLE = "cyan"
_GAPS = re.compile(r"(?<=\S) {3,}")
"""Matches spaces that align columns."""

_LABEL = re.compile(r"PerfDoctor  |\d PD\d+ | +|\w+  +")
LABEL = 9
"""Width of the words before commands."""

# If there are too many lines, those of the highest number are dropped first.
NEEDED, MORE, EXPLAIN, GAP, LAST_GAP = range(5)


class Line(NamedTuple):
    """One line: segments of text and style.

    Attributes:
        segments: Text and style.
        drop_order: One of the constants above.
        is_command: Whether only its last segment may be left out: a command that is cut cannot be copied.
    """

    segments: tuple[tuple[str, str], ...]
    drop_order: int = NEEDED
    is_command: bool = False


class BriefReport:
    """Draws lines; on a console narrower than they are, bars are cut and other lines wrapped."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = tuple(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        for line in self.lines:
            segments = [(wording.fit_encoding(text, options.encoding), style) for text, style in line.segments]
            if line.is_command and sum(cell_len(text) for text, _ in segments) > width:
                del segments[-1]
            shown = Text.assemble(*segments, no_wrap=True, overflow="ignore")
            if line.is_command or shown.cell_len <= width:
                yield shown
            elif any(style == _BAR_STYLE for _, style in segments):
                shown.truncate(width, overflow="crop" if options.encoding == "ascii" else "ellipsis")
                yield shown
            else:
                if len(segments) == 4 and segments[3][0]:  # with the code of a rule at the right edge
                    segments = [segments[0], segments[3], (" ", ""), segments[1]]
                narrow = [(_GAPS.sub("  ", text), style) for text, style in segments]
                yield from _hanging(Text.assemble(*narrow), width, console)


def _hanging(text: Text, width: int, console: Console) -> Iterator[Text]:
    """Yield a text as lines; the second and later ones are indented as far as the label of the first."""
    label = _LABEL.match(text.plain)
    indent = min(label.end() if label else 0, width // 3)
    for number, part in enumerate(text[indent:].wrap(console, width - indent, overflow="fold")):
        part.rstrip()
        yield Text.assemble(text[:indent] if number == 0 else " " * indent, part, no_wrap=True, overflow="ignore")


BLANK = Line((), GAP)


def fitted(lines: Sequence[Line]) -> list[Line]:
    """Return the lines, at most `MAX_LINES` if enough can be dropped: by `drop_order`, the last ones first."""
    kept = list(lines)
    while len(kept) > MAX_LINES and any(line.drop_order for line in kept):
        highest = max(line.drop_order for line in kept)
        del kept[max(i for i, line in enumerate(kept) if line.drop_order == highest)]
    return kept


def titled(texts: Sequence[str], code: str, style: str, max_lines: int = 2) -> list[Line]:
    """Return the first text that fits on ``max_lines`` lines (at least two); if none does, the last one is cut."""
    forms = [wrapped(text, text_width(code)) for text in texts]
    first, *more = next((each for each in forms if len(each) <= max_lines), forms[-1])
    if len(more) >= max_lines:
        last = max_lines - 2
        more = [*more[:last], wording.cut(" ".join(more[last:]), text_width(code))]
    lines = [right_aligned(TITLE, first, code, style)]
    return lines + [Line(((" " * len(TITLE), ""), (each, style))) for each in more]


def wrapped(text: str, width: int) -> list[str]:
    """Return lines of at most `width` cells; `textwrap` counts characters, of which some take two cells."""
    for n_chars in range(width, 0, -1):
        lines = textwrap.wrap(text, n_chars, break_on_hyphens=False) or [""]
        if all(cell_len(line) <= width for line in lines):
            break
    return lines


def text_width(code: str) -> int:
    """Return how many characters fit between the title and the code of a rule."""
    return MAX_WIDTH - len(TITLE) - (len(code) + 2 if code else 0)


def right_aligned(label: str, text: str, code: str, style: str = "") -> Line:
    """Return a label and a text, with the code of a rule at the right edge."""
    text = wording.cut(text, text_width(code))
    gap = " " * (text_width(code) - cell_len(text) + 2) if code else ""
    return Line(((label, "bold"), (text, style), (gap, ""), (code, QUIET)))


def labeled(label: str, text: str) -> Line:
    """Return a label followed by a text."""
    return Line(((f"{label:<{LABEL}}", QUIET), (text, "")))


def command(label: str, text: str, purpose: str = "", drop_order: int = NEEDED) -> Line:
    """Return a command and its purpose, which is omitted if there is no room.

    The purpose is a shell comment, so that a copied line runs.
    """
    return Line(((f"{label:<{LABEL}}", QUIET), (text, ""), (f"  # {purpose}" * bool(purpose), QUIET)), drop_order, True)


def bar(share: float) -> tuple[str, str]:
    """Return a bar by its length, 0…1, and its style; parts of a session file may exceed their whole."""
    return "█" * max(1, round(_BAR * min(share, 1.0))), _BAR_STYLE


def part_of(n_bytes: int, total_bytes: int | None) -> str:
    """Return memory in use and in all, ``40.0 of 141 GiB``; the total is left out if it is unknown."""
    if not total_bytes:
        return wording.size(n_bytes)
    used, total = wording.size(n_bytes), wording.size(total_bytes)
    unit = total.split(" ")[-1]
    return f"{used.removesuffix(' ' + unit)} of {total}"
