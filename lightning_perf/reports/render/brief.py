"""Short reports on a terminal, given as styled lines."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from lightning_perf.reports import wording

MAX_WIDTH = 80


class Line(NamedTuple):
    """One line: segments of text and style.

    Attributes:
        segments: Text and style.
        rank: 0 if the line is always shown; else lines of higher rank are dropped first.
        is_command: Whether only its last segment may be left out: a command that is cut cannot be copied.
    """

    segments: tuple[tuple[str, str], ...]
    rank: int = 0
    is_command: bool = False


class BriefReport:
    """Draws lines, each cut at the width of the console."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = tuple(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        for line in self.lines:
            text = Text.assemble(
                *((wording.fit_encoding(text, options.encoding), style) for text, style in line.segments)
            )
            text.no_wrap, text.overflow = True, "ignore"
            if not line.is_command:
                text.truncate(width, overflow="crop" if options.encoding == "ascii" else "ellipsis")
            elif text.cell_len > width:
                text.right_crop(len(line.segments[-1][0]))
            yield text
