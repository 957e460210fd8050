"""Operators by the memory they allocate, where the profiler recorded it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lightning_perf.records import OperatorMemory, TraceRecord
from lightning_perf.reports.render.markdown import render
from lightning_perf.reports.sections.trace import trace_document
from lightning_perf.traces import analyze, analyze_trace
from lightning_perf.traces.live import from_events, live_events

from .events import analyzed, event
from .shared import needs_shared_traces
from .shared import record as shared_record

HOST, DEVICE = 0, 1


def allocation(at_us: Any, n_bytes: Any, device_type: Any = DEVICE, tid: Any = 1) -> dict[str, Any]:
    arguments = {"Bytes": n_bytes, "Device Type": device_type, "Device Id": 0, "Total Allocated": 10**9}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": tid, "ts": at_us,
            "args": arguments}  # fmt: skip


OPERATORS = [
    event("user_annotation", "ProfilerStep#1", 0, 1000),
    event("user_annotation", "ProfilerStep#2", 1000, 1000),
    event("cpu_op", "aten::conv2d", 100, 400),
    event("cpu_op", "aten::cudnn_convolution", 200, 200),
    event("cpu_op", "aten::empty_strided", 210, 10),
    event("cpu_op", "aten::mm", 100, 100, tid=2),
    event("cpu_op", "aten::empty", 700, 50),
]


def with_allocations(tmp_path: Path, *allocations: Any) -> TraceRecord:
    return analyzed(tmp_path, [*OPERATORS, *allocations])


def test_an_allocation_counts_for_the_innermost_operator_of_its_thread(tmp_path: Path) -> None:
    record = with_allocations(
        tmp_path,
        allocation(300, 4000),
        allocation(215, 500, HOST),
        allocation(450, 100),
        allocation(150, 2000, tid="2"),
        allocation(1500, 30),
        allocation(720, 7),
    )
    assert record.operator_memory == (
        OperatorMemory(name="aten::cudnn_convolution", n=2, device_bytes=4000, host_bytes=500),
        OperatorMemory(name="aten::mm", n=1, device_bytes=2000, host_bytes=0),
        OperatorMemory(name="aten::conv2d", n=1, device_bytes=100, host_bytes=0),
        OperatorMemory(name="", n=1, device_bytes=30, host_bytes=0),
        OperatorMemory(name="aten::empty", n=1, device_bytes=7, host_bytes=0),
    )
    text = render(trace_document(record))
    assert "| aten::cudnn\\_convolution | 1 | 1.95 KiB | 250 B |" in text
    assert "| (outside operators) |" in text
    assert "operator_memory" not in record.missing


def test_freed_memory_other_events_and_memory_outside_the_steps_do_not_count(tmp_path: Path) -> None:
    other = {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "tid": 0, "ts": 300, "s": "g"}
    record = with_allocations(tmp_path, other, allocation(300, 4000), allocation(310, -4000), allocation(2500, 8000))
    assert record.operator_memory == (
        OperatorMemory(name="aten::cudnn_convolution", n=1, device_bytes=4000, host_bytes=0),
    )


@pytest.mark.parametrize("n_bytes", [None, "many", 10**30, [], 1e300])
def test_impossible_sizes_do_not_count(tmp_path: Path, n_bytes: Any) -> None:
    bare = {"ph": "i", "name": "[memory]"}
    strange = {"ph": "i", "name": "[memory]", "pid": [], "tid": {}, "ts": 300, "args": {"Bytes": 1}}
    record = with_allocations(
        tmp_path, allocation(300, n_bytes), bare, strange, allocation("soon", 5), allocation(300, 4, "no"), 7
    )
    assert [(each.name, each.host_bytes) for each in record.operator_memory] == [
        ("aten::cudnn_convolution", 4),
        ("", 1),
    ]


def test_a_trace_without_memory_says_how_to_record_it(tmp_path: Path) -> None:
    record = with_allocations(tmp_path)
    assert record.operator_memory == ()
    assert "profile_memory=True" in record.missing["operator_memory"]
    assert "Operators by memory" not in render(trace_document(record))


def test_file_and_live_profiler_attribute_what_torch_allocates(tmp_path: Path) -> None:
    a = torch.ones(256, 256)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        torch.mm(a, a)
        torch.zeros(1000)
    recording.export_chrome_trace(str(tmp_path / "trace.json"))
    live = from_events(live_events(recording.profiler.kineto_results.events()))  # type: ignore[union-attr]
    for record in (analyze(tmp_path / "trace.json"), analyze_trace(live)):
        sizes = {each.name: (each.n, each.device_bytes, each.host_bytes) for each in record.operator_memory}
        assert sizes == {"aten::mm": (1, 0, 4 * 256 * 256), "aten::zeros": (1, 0, 4000)}


@needs_shared_traces
def test_real_training_allocates_on_the_device_in_its_operators() -> None:
    record = shared_record("v100-ddp-unbucketed.json.gz")
    in_operators = sum(each.device_bytes for each in record.operator_memory if each.name)
    assert in_operators > 0.9 * sum(each.device_bytes for each in record.operator_memory) > 0
