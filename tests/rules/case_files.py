"""Read the cases of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: ten times as fast


def load(path: Path) -> Any:
    """Return the document in a YAML file."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)


def load_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases in a file."""
    cases: list[dict[str, Any]] = load(path)
    return cases
