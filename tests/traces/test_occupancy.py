"""Occupancy and SM efficiency, where the profiler wrote them with the kernels."""

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.records import TraceRecord
from lightning_perf.reports.render.markdown import render
from lightning_perf.reports.sections.trace import trace_document

from .events import analyzed, event, launched

STEP = event("user_annotation", "ProfilerStep#1", 0, 1000)


def kernel(correlation: int, start_us: float, duration_us: float, device: int = 0, **more: Any) -> list[dict[str, Any]]:
    events = launched("ampere_sgemm", 1 + correlation, start_us, duration_us, correlation)
    events[1]["args"] |= {"device": device} | {
        {"occupancy": "est. achieved occupancy %", "blocks": "blocks per SM"}[name]: value
        for name, value in more.items()
    }
    return events


def with_kernels(tmp_path: Path, *kernels: list[dict[str, Any]]) -> TraceRecord:
    return analyzed(tmp_path, [STEP, *(each for pair in kernels for each in pair)])


def test_occupancy_is_weighted_by_time(tmp_path: Path) -> None:
    record = with_kernels(
        tmp_path,
        kernel(1, 100, 300, occupancy=80, blocks=2.0),
        kernel(2, 500, 100, occupancy=40, blocks=0.5),
    )
    kernels = record.kernels
    assert kernels.occupancy == pytest.approx(0.7)
    assert kernels.sm_efficiency == pytest.approx((300 * 1 + 100 * 0.5) / 1000)
    assert kernels.top[0].occupancy == pytest.approx(0.7)
    assert kernels.top[0].blocks_per_sm == pytest.approx((300 * 2 + 100 * 0.5) / 400)
    assert not {"occupancy", "sm_efficiency"} & set(record.missing)
    assert "estimated achieved occupancy 70 %, estimated SM efficiency 35 %" in render(trace_document(record))


def test_kernels_that_run_at_once_fill_the_device_at_most_once(tmp_path: Path) -> None:
    record = with_kernels(tmp_path, kernel(1, 100, 200, blocks=0.75), kernel(2, 200, 200, blocks=0.75))
    assert record.kernels.sm_efficiency == pytest.approx((100 * 0.75 + 100 * 1 + 100 * 0.75) / 1000)


def test_sm_efficiency_is_the_mean_over_devices(tmp_path: Path) -> None:
    record = with_kernels(tmp_path, kernel(1, 100, 400, 0, blocks=1), kernel(2, 100, 200, 1, blocks=1))
    assert record.kernels.sm_efficiency == pytest.approx(0.3)


def test_kernels_without_figures_do_not_count_as_zero(tmp_path: Path) -> None:
    record = with_kernels(
        tmp_path,
        kernel(1, 100, 100, occupancy=50),
        kernel(2, 300, 100),
        *(kernel(3 + i, 500 + 20 * i, 10, occupancy=bad) for i, bad in enumerate((-1, None, "x", 10**400, 101))),
    )
    assert record.kernels.occupancy == pytest.approx(0.5)
    assert record.kernels.sm_efficiency is None


def test_a_trace_without_figures_says_so(tmp_path: Path) -> None:
    record = with_kernels(tmp_path, kernel(1, 100, 100))
    assert (record.kernels.occupancy, record.kernels.sm_efficiency) == (None, None)
    assert "estimated" not in render(trace_document(record))
    assert "the profiler wrote no occupancy" in record.missing["occupancy"]
    assert "the profiler wrote no occupancy" in record.missing["sm_efficiency"]
