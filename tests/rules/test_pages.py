"""The pages on the rules are those that the generator gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_equal_what_the_generator_gives_when_committed():
    spec = importlib.util.spec_from_file_location("generate_rules", DOCS / "generate_rules.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    committed = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "rules").glob("*.md")}
    assert committed == generator.pages(), "run: make docs-rules"
