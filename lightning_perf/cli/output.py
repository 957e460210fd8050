"""Output of commands: stdout, stderr, files and exit codes."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lightning_perf.errors import ConfigError
from lightning_perf.records.files import write_whole
from lightning_perf.records.remote import RemotePath, any_path, exists, is_dir
from lightning_perf.reports.document import Document
from lightning_perf.reports.wording import fit_encoding, line

FORMATS = ("console", "markdown", "json")

FOUND: Final = 1
"""Exit code of ``compare`` for a regression, and of ``demo`` for a diagnosis other than the planted fault."""

BAD_INPUT: Final = 2
"""Exit code if any of the input is invalid; one line on stderr gives the reason."""

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as in shells."""


def write_stdout(text: str) -> None:
    """Print text; characters that the terminal cannot show are replaced."""
    sys.stdout.write(fit_encoding(text if text.endswith("\n") else text + "\n", sys.stdout.encoding))


def write_error(text: str) -> None:
    """Print one line to stderr."""
    print(fit_encoding(f"lightning-perf: {line(text, 1000)}", sys.stderr.encoding), file=sys.stderr)


def write(text: str, out: str | None, is_forced: bool) -> None:
    """Write text to stdout, or as UTF-8 to the file of ``--out``, atomically; create its parent folders.

    Raises ``ConfigError`` if the file cannot be written, or if it exists and ``is_forced`` is False.
    """
    if out is None:
        write_stdout(text)
        return
    check_file(out, is_forced)
    try:
        whole = text if text.endswith("\n") else text + "\n"
        write_whole(any_path(out), whole.encode())
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot write --out {any_path(out)}: {reason}; choose another file") from error


def json_text(record: Any) -> str:
    """Return a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1).decode()


def show(document: Document, record: Any, form: str, out: str | None = None, is_forced: bool = False) -> None:
    """Print a document, or its record as JSON, or write it to the file of ``--out``; ``form`` is one of ``FORMATS``."""
    from lightning_perf.reports.console import emit, to_text
    from lightning_perf.reports.render.markdown import render

    if form == "console" and out is None:
        emit(document)
    elif form == "console":
        write(to_text(document), out, is_forced)
    else:
        write(json_text(record) if form == "json" else render(document, is_folded=True), out, is_forced)


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    """Raise ``ConfigError`` unless a value is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{option} {value} is not known; expected one of {', '.join(choices)}")


def write_page(page: str) -> None:
    """Print an HTML page as UTF-8, whatever the terminal's encoding, because its scripts must not change."""
    sys.stdout.flush()
    sys.stdout.buffer.write(page.encode())
    sys.stdout.buffer.flush()


def default_folder(kind: str) -> Path:
    """Return the folder of a command's output without ``--out``, e.g. ``perf_logs/trial-20260101-120000``."""
    return Path("perf_logs") / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"


def check_folder(out: Path | None) -> None:
    """Raise ``ConfigError`` if the folder given with ``--out`` is a file, or at a URL."""
    if out is not None and isinstance(any_path(out), RemotePath):
        raise ConfigError(f"--out {any_path(out)} is a URL; this command writes to a local folder only")
    if out is not None and os.path.exists(out) and not os.path.isdir(out):
        raise ConfigError(f"--out {str(out)!r} is a file; expected a folder, which is created if it is missing")


def require_folder(folder: Path) -> None:
    """Create a command's output folder; raise ``ConfigError`` if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error


def check_file(target: str | None, is_forced: bool) -> None:
    """Raise ``ConfigError`` if the file of ``--out`` cannot be written: it is a folder, or exists without ``--force``.

    Call it before anything that takes long. None means stdout.
    """
    if target is None:
        return
    place = any_path(target)
    try:
        is_folder, is_taken = is_dir(place), not is_forced and exists(place)
    except OSError as error:
        raise ConfigError(f"cannot write --out {place}: {error.strerror}") from error
    if is_folder:
        raise ConfigError(f"--out {place} is a folder; give the name of a file in it")
    if is_taken:
        raise ConfigError(f"--out {place} exists already; add --force to replace it, or choose another file")
