"""The committed pages on the rules equal those of the generator."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from lightning_perf.rules.engine import all_rules

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_equal_the_generators_when_committed():
    spec = importlib.util.spec_from_file_location("generate_rules", DOCS / "generate_rules.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    committed = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "rules").glob("*.md")}
    assert committed == generator.pages(), "run: make docs-rules"


def test_codes_are_unique_and_have_no_rule_when_listed_as_not_built():
    text = (DOCS / "reference" / "rules-not-built.md").read_text(encoding="utf-8")
    codes = re.findall(r"^\| (PD\d{3}) \|", text, re.MULTILINE)
    assert codes
    assert codes == sorted(set(codes))
    assert not set(codes) & {rule.code for rule in all_rules()}
