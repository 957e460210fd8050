"""Where verbs put what they made: on standard output, or whole into a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lightning_perf.errors import ConfigError
from lightning_perf.records.files import write_whole
from lightning_perf.reports.wording import fit_encoding


def write_stdout(text: str) -> None:
    """Prints text as it stands; signs that the terminal lacks are replaced."""
    sys.stdout.write(fit_encoding(text if text.endswith("\n") else text + "\n", sys.stdout.encoding))


def write_page(page: str) -> None:
    """Prints a page of HTML as UTF-8 whatever the terminal's encoding: its scripts run only unchanged."""
    sys.stdout.flush()
    sys.stdout.buffer.write(page.encode())
    sys.stdout.buffer.flush()


def check_folder(out: Path | None) -> None:
    """Where a verb is to put several files; None for its own place.

    Raises:
        ConfigError: A file stands there.
    """
    if out is not None and os.path.exists(out) and not os.path.isdir(out):
        raise ConfigError(f"--out {str(out)!r} is a file; expected a folder, which is made where it is missing")


def check_file(target: Path | None, is_forced: bool) -> None:
    """Where a verb is to put a file; None for standard output. Asked before what takes long.

    Raises:
        ConfigError: A folder stands there, or a file and ``is_forced`` is False.
    """
    if target is None:
        return
    if os.path.isdir(target):
        raise ConfigError(f"--out {target} is a folder; give the name of a file in it")
    if os.path.exists(target) and not is_forced:
        raise ConfigError(f"--out {target} exists already; add --force to replace it, or choose another file")


def write_file(target: Path, text: str, is_forced: bool) -> None:
    """Writes a file of UTF-8 text; a crash leaves an existing one whole.

    Args:
        target: The file; parents are made.
        text: Its content.
        is_forced: Whether an existing file may be replaced.

    Raises:
        ConfigError: A file stands there and ``is_forced`` is False, or it cannot be written.
    """
    check_file(target, is_forced)
    try:
        whole = text if text.endswith("\n") else text + "\n"
        write_whole(target, whole.encode())
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot write --out {target}: {reason}; choose another file") from error
