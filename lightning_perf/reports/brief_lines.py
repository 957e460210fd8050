"""Lines of brief reports: their parts, their drawing, and the order in which they are left out."""

import textwrap
from collections.abc import Sequence
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
    """Draws lines, each cut at the width of the console."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = tuple(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        for line in self.lines:
            segments = [(wording.fit_encoding(text, options.encoding), style) for text, style in line.segments]
            if line.is_command and sum(cell_len(text) for text, _ in segments) > width:
                del segments[-1]
            shown = Text.assemble(*segments, no_wrap=True, overflow="ignore")
            if not line.is_command:
                shown.truncate(width, overflow="crop" if options.encoding == "ascii" else "ellipsis")
            yield shown


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
    return "█" * max(1, round(_BAR * min(share, 1.0))), "cyan"


def part_of(n_bytes: int, total_bytes: int | None) -> str:
    """Return memory in use and in all, ``40.0 of 141 GiB``; the total is left out if it is unknown."""
    if not total_bytes:
        return wording.size(n_bytes)
    used, total = wording.size(n_bytes), wording.size(total_bytes)
    unit = total.split(" ")[-1]
    return f"{used.removesuffix(' ' + unit)} of {total}"
