"""The committed pages on the rules equal those of the generator."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_equal_the_generators_when_committed():
    spec = importlib.util.spec_from_file_location("generate_rules", DOCS / "generate_rules.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    committed = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "rules").glob("*.md")}
    assert committed == generator.pages(), "run: make docs-rules"
