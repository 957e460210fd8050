"""The command line in the test's process, and in one without torch and lightning."""

from __future__ import annotations

import sys

import pytest

from lightning_perf.cli.app import main

BLOCKER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "lightning", "pytorch_lightning", "torchmetrics"):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, Refuse())
from lightning_perf.cli.app import main
main()
"""
"""Code that calls the command line without torch and lightning; for ``python -c``."""


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Call the command line; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["lightning-perf", *map(str, arguments)])
    with pytest.raises(SystemExit) as leaving:
        main()
    return int(leaving.value.code or 0)
