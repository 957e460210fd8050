"""Printing on the terminal without breaking live progress bars."""

import contextlib
import io
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast

from rich.console import Console, RenderableType
from rich.text import Text

from lightning_perf.reports.document import Document
from lightning_perf.reports.wording import fit_encoding

from .console import DocumentReport

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress

Content: TypeAlias = RenderableType | Document | Sequence[Document]
"""What can be printed: documents, another rich renderable, or text, which is never read as markup."""


def emit(content: Content, *, display: "Live | Progress | None" = None, stream: TextIO | None = None) -> None:
    """Print a report, or plain text, above any live progress bar.

    ``display`` is a live one of rich (Lightning's ``RichProgressBar``), whose console makes room itself. Without one,
    the report goes to ``stream`` or standard output, with colors and control characters only on a terminal; in
    notebooks, rich's colors are unreadable on dark backgrounds.
    """
    if display is not None and not display.console.is_jupyter:
        # Redraw first: if rich's thread redraws fewer lines while this prints, the cursor moves up too far, and a line
        # above is overwritten.
        display.refresh()
        # Uncropped: code to copy may be longer than the line.
        display.console.print(_renderable(content, display.console), crop=False)
        return
    out = stream if stream is not None else sys.stdout
    own = _Console(file=out)
    if own.is_terminal:
        with _tqdm_aside(out):
            own.print(_renderable(content, own), crop=False)
    else:
        out.write("\n" * _has_open_line(out) + to_text(content, own.width, own.encoding))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error: rich would redirect standard output and end the process, and with it the training."""
        raise


def to_text(content: Content, width: int = 80, encoding: str = "utf-8") -> str:
    """Return a report as plain text without colors."""
    # The file only gives the encoding: the output is captured before it reaches the file.
    recorder = Console(
        file=io.TextIOWrapper(io.BytesIO(), encoding=encoding),
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
        _environ={},
    )
    with recorder.capture() as captured:
        recorder.print(_renderable(content, recorder), crop=False)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def _renderable(content: Content, console: Console) -> RenderableType:
    if isinstance(content, str):
        return Text(fit_encoding(content, console.encoding), overflow="fold")
    if isinstance(content, Document):
        return DocumentReport(content)
    return DocumentReport(*content) if isinstance(content, list | tuple) else cast(RenderableType, content)


def _tqdm_aside(stream: Any) -> AbstractContextManager[Any]:
    """Return a context that hides tqdm's bars; does nothing without any."""
    bars = _tqdm_bars()
    if not bars:
        return contextlib.nullcontext()
    aside: AbstractContextManager[Any] = type(bars[0]).external_write_mode(file=stream)
    return aside


def _has_open_line(stream: Any) -> bool:
    """Return whether a tqdm bar was the last thing written to a file, which must not be redrawn there."""
    return any(bar.fp == stream and not bar.gui for bar in _tqdm_bars())


def _tqdm_bars() -> list[Any]:
    """Return tqdm's live bars."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return list(getattr(tqdm, "_instances", ()))
