"""Hook of mkdocs: add the reference pages that are made from the code to the site."""

from __future__ import annotations

from typing import Any

import generate_cli
import generate_schema
import generate_thresholds
import generate_treatments
from mkdocs.structure.files import File


def pages() -> dict[str, str]:
    """Return the pages by their paths in the site."""
    return {f"reference/{name}": text for name, text in generate_schema.pages().items()} | {
        "reference/cli.md": generate_cli.page(),
        "reference/thresholds.md": generate_thresholds.page(),
        "reference/treatments.md": generate_treatments.page(),
    }


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; called by mkdocs."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files
