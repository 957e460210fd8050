"""Real traces next to the repository, if present."""

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightning_perf.records import TraceRecord
from lightning_perf.traces import Trace, analyze_trace, read

FOLDER = Path(__file__).parents[2].parent / "shared" / "traces"
needs_shared_traces = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the folder of real traces is missing: {FOLDER}")


class Row(NamedTuple):
    """A row of the folder's index: what is known about one trace."""

    file: str
    n_steps: int
    step_ms: float
    busy_percent: float
    loader_ms: float
    kernels: float
    kernel_median_us: float | None
    h2d_ms: float
    h2d_pageable: float
    h2d_pinned: float
    syncs: float
    sync_ms: float
    items: float
    communication_ms: float
    exposed_ms: float


def index_rows() -> list[Row]:
    """The figures of the index; empty where the folder is missing."""
    if not FOLDER.is_dir():
        return []
    rows = []
    for text in (FOLDER / "INDEX.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if len(cells) < 13 or not cells[0].endswith(".json.gz"):
            continue
        kernels, _, median = cells[6].partition(",")
        h2d, _, parts = cells[7].partition("(")
        pageable, _, pinned = parts.rstrip(")").partition("/")
        syncs, _, sync_ms = cells[8].partition("(")
        communication, _, exposed = cells[10].partition("(")
        rows.append(
            Row(
                cells[0], int(cells[2]), float(cells[3]), float(cells[4]), float(cells[5]), float(kernels),
                None if median.strip() == "–" else float(median), float(h2d), float(pageable), float(pinned),
                float(syncs), float(sync_ms.rstrip(")")), float(cells[9]), float(communication),
                float(exposed.rstrip(")")),
            )
        )  # fmt: skip
    return rows


@functools.lru_cache(maxsize=40)
def trace(file: str) -> Trace:
    """The columns of one of them."""
    return read(FOLDER / file)


@functools.lru_cache(maxsize=40)
def record(file: str) -> TraceRecord:
    """Return the record of one of them."""
    return analyze_trace(trace(file))


def golden(file: str) -> Any:
    """Figures from the tests of the project that a trace comes from."""
    return json.loads((FOLDER / "golden.json").read_text(encoding="utf-8"))[file]
