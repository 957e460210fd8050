"""Folders that take long to make, made once for all workers of a run: any of them may get a test that needs one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock  # torch depends on it


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of a name, which ``make`` has filled; other workers wait for the one that makes it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # which all workers share
    folder, done = base / f"once-{name}", base / f"once-{name}.done"
    with FileLock(base / f"once-{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
