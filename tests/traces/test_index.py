"""Every real trace matches its row in the index.

The index clips to the steps' windows on the host. So do these tests; where the reader follows the device instead, the
golden figures are its measure (test_golden.py).
"""

from statistics import median

import numpy as np
import pytest

from lightning_perf.traces.intervals import Intervals
from lightning_perf.traces.kinds import KERNEL, MEMCPY
from lightning_perf.traces.timeline import Timeline

from .shared import Row, index_rows, needs_shared_traces, record, trace

pytestmark = needs_shared_traces
ROWS = index_rows()
all_rows = pytest.mark.parametrize("row", ROWS, ids=[row.file for row in ROWS])
MS = 1e6  # nanoseconds

# What runs in a host window here belongs to other steps; how its edges cut collectives is the index's own choice.
HOST_FAR_AHEAD = {"resnet-checkpoint-fsdp-mi300.json.gz"}


def windows(file: str) -> list[tuple[int, int]]:
    steps = Timeline(trace(file)).steps
    return list(zip(steps.host_starts.tolist(), steps.host_ends.tolist(), strict=True))


def median_over_windows(file: str, busy: Intervals) -> float:
    return median(busy.clip(start, end).total_ns / MS for start, end in windows(file))


def timeline_inside(file: str, rows: np.ndarray) -> int:
    return len(Timeline(trace(file)).steps.inside(trace(file), rows))


def approx(value: float, slack: float = 0.051) -> object:
    """Within 2 %, or the last digit that the index gives."""
    return pytest.approx(value, rel=0.02, abs=slack)


@all_rows
def test_steps_agree_with_the_index(row: Row) -> None:
    result = record(row.file)
    assert len(result.steps) == row.n_steps
    assert median(step.host_s for step in result.windows) * 1e3 == approx(row.step_ms)


@all_rows
def test_busy_fraction_agrees_with_the_index(row: Row) -> None:
    result = record(row.file)
    steps = result.windows
    if row.kernels == 0 and row.busy_percent == 0:
        assert all(step.busy_fraction is None and step.device_busy_s is None for step in steps)
        assert result.missing["device"]
    else:
        busy_percent = median(100 * step.host_busy_s / step.host_s for step in steps)
        assert busy_percent == pytest.approx(row.busy_percent, abs=0.2)


@all_rows
def test_loader_agrees_with_the_index(row: Row) -> None:
    result = record(row.file)
    assert median(step.loader_s for step in result.windows) * 1e3 == approx(row.loader_ms)
    assert (result.loader is None) == (row.loader_ms == 0)


@all_rows
def test_kernels_agree_with_the_index(row: Row) -> None:
    columns = trace(row.file)
    kernels = columns.rows(KERNEL)
    counts, medians = [], []
    for start, end in windows(row.file):
        inside = kernels[(columns.starts[kernels] >= start) & (columns.starts[kernels] < end)]
        counts.append(len(inside))
        if len(inside):
            medians.append(float(np.median(columns.durations[inside])) / 1e3)
    assert median(counts) == pytest.approx(row.kernels, rel=0.02)
    if row.kernel_median_us is not None:
        assert median(medians) == pytest.approx(row.kernel_median_us, rel=0.02, abs=0.051)
    assert record(row.file).n_kernels == len(kernels)


@all_rows
def test_copies_agree_with_the_index(row: Row) -> None:
    columns = trace(row.file)
    copies = columns.rows_named(columns.rows(MEMCPY), lambda name: "HtoD" in name)
    assert median_over_windows(row.file, columns.intervals(copies)) == approx(row.h2d_ms)
    result = record(row.file).copies
    n = max(row.n_steps, 1)
    if result is not None:
        assert result.h2d_pageable_n / n == pytest.approx(row.h2d_pageable, abs=0.5)
        pinned = timeline_inside(row.file, columns.rows_named(copies, lambda name: "Pinned" in name))
        assert pinned / n == pytest.approx(row.h2d_pinned, abs=0.5)
        assert result.h2d_n >= result.h2d_pageable_n + pinned
    else:
        assert row.h2d_pageable == row.h2d_pinned == 0


@all_rows
def test_synchronizations_agree_with_the_index(row: Row) -> None:
    result = record(row.file).syncs
    n = max(row.n_steps, 1)
    assert result.n / n == pytest.approx(row.syncs, abs=0.5)
    assert result.wait_s / n * 1e3 == approx(row.sync_ms)
    assert result.item_n / n == pytest.approx(row.items, abs=0.5)


@all_rows
def test_communication_agrees_with_the_index(row: Row) -> None:
    timeline = Timeline(trace(row.file))
    columns, rows = timeline.trace, timeline.communication_rows
    totals, bare = [], []
    for start, end in windows(row.file):
        own = columns.intervals(rows[(columns.starts[rows] >= start) & (columns.starts[rows] < end)])
        totals.append(own.total_ns / MS)
        bare.append((own - timeline.compute).total_ns / MS)
    assert median(totals) == approx(row.communication_ms)
    if row.file not in HOST_FAR_AHEAD:
        assert median(bare) == approx(row.exposed_ms)


@all_rows
def test_categories_add_up_to_the_step_when_any_trace_is_read(row: Row) -> None:
    result = record(row.file)
    for step in (*result.steps, result.whole):
        assert sum(step.categories.values()) == pytest.approx(step.duration_s, abs=1e-9)
        assert all(seconds >= 0 for seconds in step.categories.values())
