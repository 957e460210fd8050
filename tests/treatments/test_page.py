"""The page on treatments does not depend on the machine that builds it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from lightning_perf.treatments.specs import all_treatments

DOCS = Path(__file__).parents[2] / "docs"


def test_page_is_the_same_when_the_number_of_cores_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("generate_treatments", DOCS / "generate_treatments.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    pages = []
    for n_cores in (1, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=n_cores: set(range(n)), raising=False)
        pages.append(generator.page())
    assert pages[0] == pages[1]
    assert all(f"### {treatment.id}\n" in pages[0] for treatment in all_treatments())
