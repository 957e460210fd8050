"""The pages on the rules are those that the generator gives."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from lightning_perf.rules.engine import all_rules

DOCS = Path(__file__).parents[2] / "docs"


def test_pages_equal_what_the_generator_gives_when_committed():
    spec = importlib.util.spec_from_file_location("generate_rules", DOCS / "generate_rules.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    committed = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "rules").glob("*.md")}
    assert committed == generator.pages(), "run: make docs-rules"


def test_rules_not_built_names_no_code_twice_and_none_that_has_a_rule():
    text = (DOCS / "reference" / "rules-not-built.md").read_text(encoding="utf-8")
    codes = re.findall(r"^\| (PD\d{3}) \|", text, re.MULTILINE)
    assert codes
    assert codes == sorted(set(codes))
    assert not set(codes) & {rule.code for rule in all_rules()}
