"""Lines of brief reports: labels, commands, and which lines are left out where there are too many."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len

from . import wording
from .render.brief import MAX_WIDTH, Line
from .render.console import QUIET

MAX_LINES = 15
TITLE = "PerfDoctor  "
_BAR = 30
LABEL = 9
"""Width of the words before commands."""

# Where there are too many lines, those of the highest number are dropped first.
NEEDED, MORE, GAP, LAST_GAP = range(4)

BLANK = Line((), GAP)


def fitted(lines: Sequence[Line]) -> list[Line]:
    """Return the lines without those of the highest ranks, the last ones first, if there are too many."""
    kept = list(lines)
    while len(kept) > MAX_LINES and any(line.rank for line in kept):
        highest = max(line.rank for line in kept)
        del kept[max(i for i, line in enumerate(kept) if line.rank == highest)]
    return kept


def titled(texts: Sequence[str], code: str, style: str) -> list[Line]:
    """Return the first text that fits on two lines; the last text is cut if none does."""
    wrapped = [textwrap.wrap(text, room_of(code), break_on_hyphens=False) or [""] for text in texts]
    first, *more = next((each for each in wrapped if len(each) <= 2), wrapped[-1])
    if len(more) > 1:
        more = [wording.cut(" ".join(more), room_of(code))]
    lines = [right_aligned(TITLE, first, code, style)]
    return lines + [Line(((" " * len(TITLE), ""), (each, style))) for each in more]


def room_of(code: str) -> int:
    """Return how many characters fit between the title and the code of a rule."""
    return MAX_WIDTH - len(TITLE) - (len(code) + 2 if code else 0)


def right_aligned(label: str, text: str, code: str, style: str = "") -> Line:
    """Return a label and a text, with the code of a rule at the right edge."""
    text = wording.cut(text, room_of(code))
    gap = " " * (room_of(code) - cell_len(text) + 2) if code else ""
    return Line(((label, "bold"), (text, style), (gap, ""), (code, QUIET)))


def labelled(label: str, text: str) -> Line:
    """Return a label followed by a text."""
    return Line(((f"{label:<{LABEL}}", QUIET), (text, "")))


def command(label: str, text: str, purpose: str = "") -> Line:
    """Return a command and its purpose, which is omitted if there is no room.

    The purpose is a shell comment, so that a copied line runs.
    """
    return Line(((f"{label:<{LABEL}}", QUIET), (text, ""), (f"  # {purpose}" * bool(purpose), QUIET)), is_command=True)


def bar(share: float) -> tuple[str, str]:
    """Return a bar by its length, 0…1, and its style."""
    return "█" * max(1, round(_BAR * share)), "cyan"


def joined(parts: Sequence[str], separator: str) -> list[str]:
    """Return lines of whole parts."""
    lines = list(parts[:1])
    for part in parts[1:]:
        longer = lines[-1] + separator + part
        lines[-1:] = [longer] if cell_len(longer) <= MAX_WIDTH else [lines[-1], part]
    return lines


def part_of(n_bytes: int, total_bytes: int | None) -> str:
    """Return memory in use and in all, ``40.0 of 141 GiB``; the total is left out if it is unknown."""
    if not total_bytes:
        return wording.size(n_bytes)
    used, total = wording.size(n_bytes), wording.size(total_bytes)
    unit = total.split(" ")[-1]
    return f"{used.removesuffix(' ' + unit)} of {total}"
