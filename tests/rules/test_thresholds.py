"""The table of thresholds is complete, and has a source or a reason for each value."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_perf import rules
from lightning_perf.rules import thresholds

RULES = Path(rules.__path__[0])
DOCS = Path(__file__).parents[2] / "docs"
MODULES = sorted(path for path in RULES.rglob("*.py") if path.name != "thresholds.py")
UNNAMED = {0, 1, 2, 100}


def _numbers(tree: ast.AST) -> Iterator[float]:
    """Yield the numbers of a module-level value that are not in a call or a nested function."""
    if isinstance(tree, (ast.Call, ast.Lambda)):
        return
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        yield tree.value
    for child in ast.iter_child_nodes(tree):
        yield from _numbers(child)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_defines_no_numeric_constant_of_its_own(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    values = [node.value for node in body if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None]
    found = [number for value in values for number in _numbers(value) if number not in UNNAMED]
    assert not found, "move it to lightning_perf/rules/thresholds.py, with its source"


@pytest.mark.parametrize("name", thresholds.table())
def test_threshold_has_a_source_or_a_reason(name: str) -> None:
    row = thresholds.table()[name]
    assert row.value == getattr(thresholds, name)
    assert row.unit
    assert row.why.endswith(".")
    assert bool(row.source) == (row.status != "heuristic")
    if row.status == "published":
        assert row.source.startswith("https://")


def test_every_threshold_is_used() -> None:
    texts = [path.read_text(encoding="utf-8") for path in MODULES]
    assert [name for name in thresholds.table() if not any(re.search(rf"\b{name}\b", text) for text in texts)] == []


def test_page_lists_every_threshold() -> None:
    spec = importlib.util.spec_from_file_location("generate_thresholds", DOCS / "generate_thresholds.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    listed = re.findall(r"^\| (\w+) \| .*\| (?:.*) \|$", generator.page(), re.MULTILINE)
    assert listed[1:] == list(thresholds.table())
