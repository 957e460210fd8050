"""The page on treatments is the one that the generator gives."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_page_equals_what_the_generator_gives_when_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("generate_treatments", DOCS / "generate_treatments.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert generator.FILE.read_text(encoding="utf-8") == generator.page(), "run: make docs-rules"
