"""Where verbs put what they made: on standard output, or whole into a file."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from lightning_perf.errors import ConfigError
from lightning_perf.reports.wording import fit_encoding


def write_stdout(text: str) -> None:
    """Prints text as it stands; signs that the terminal lacks are replaced."""
    sys.stdout.write(fit_encoding(text if text.endswith("\n") else text + "\n", sys.stdout.encoding))


def write_file(target: Path, text: str, is_forced: bool) -> None:
    """Writes a file of UTF-8 text; a crash leaves an existing one whole.

    Args:
        target: The file; parents are made.
        text: Its content.
        is_forced: Whether an existing file may be replaced.

    Raises:
        ConfigError: A file stands there and ``is_forced`` is False, or it cannot be written.
    """
    if target.is_dir():
        raise ConfigError(f"--out {target} is a folder; give the name of a file in it")
    if target.exists() and not is_forced:
        raise ConfigError(f"--out {target} exists already; add --force to replace it, or choose another file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text if text.endswith("\n") else text + "\n")
            # mkstemp makes it private; a report is as readable as any file that the user writes.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write --out {target}: {error.strerror or error}; choose another file") from error
