"""Files written whole, so that a crash leaves what stood there before, and their names as text."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path


def write_whole(target: Path, content: bytes) -> None:
    """Writes beside the target and renames, so that a reader finds the old content or the new, never a part.

    Args:
        target: The file; parents are made, an existing file is replaced.
        content: What to write.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    # Not mkstemp: its file is for the owner alone, and the umask cannot be read without changing it for all threads.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def as_text(name: str) -> str:
    """A file's name as text that can be sent: bytes that are no UTF-8 become question marks."""
    return name.encode("utf-8", "replace").decode("utf-8")
