"""Compare text with a golden file; ``UPDATE_GOLDEN=1`` rewrites the files, to be reviewed before commit."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent / "golden"


def assert_golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
    assert file.exists(), f"{file} is missing; write it with UPDATE_GOLDEN=1"
    assert text == file.read_text(encoding="utf-8")
