"""Events of a running profiler say the same as the file that it writes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.traces import analyze, analyze_trace, from_events, live_events

from .events import SMALL, analyzed


def kineto_event(event: dict[str, Any]) -> Any:
    """The event of a trace file with the methods of a running profiler's."""
    arguments = event["args"]
    values = {
        "name": event["name"], "activity_type": event["cat"],
        "start_ns": int(event["ts"] * 1000), "duration_ns": int(event["dur"] * 1000),
        "device_index": arguments.get("device", -1), "device_resource_id": arguments.get("stream", event["tid"]),
        "correlation_id": arguments.get("correlation", 0), "nbytes": 0,
        "shapes": arguments.get("Input Dims", []), "dtypes": arguments.get("Input type", []),
    }  # fmt: skip
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


def test_record_from_events_equals_record_from_file(tmp_path: Path) -> None:
    from_file = analyzed(tmp_path, SMALL)
    live = analyze_trace(from_events(live_events(map(kineto_event, SMALL))))
    assert live.source == "live"
    for field in ("steps", "idle", "loader", "kernels", "operators", "matrix_shapes", "what_if", "device"):
        assert getattr(live, field) == getattr(from_file, field), field


def test_start_times_have_nanoseconds() -> None:
    events = [kineto_event(event) for event in SMALL[:3]]
    for i, event in enumerate(events):
        event.start_ns = lambda i=i: 1_764_543_210_123_456_789 + 30 * i
    assert from_events(live_events(events)).starts.tolist() == [0, 30, 60]


def test_annotations_on_a_device_are_no_kernels_when_torch_gives_no_categories() -> None:
    """As torch up to 2.11 does."""
    names = {
        "kernel": "ampere_sgemm",
        "annotation": "Optimizer.step#SGD.step",
        "copy": "Memcpy HtoD (Pageable -> Device)",
    }
    events = []
    for i, (kind, name) in enumerate(names.items()):
        arguments = {"device": 0, "stream": 7}
        event = kineto_event({"name": name, "cat": "", "ts": 100 * i, "dur": 90, "tid": 7, "args": arguments})
        del event.activity_type
        event.device_type, event.is_user_annotation = lambda: "DeviceType.CUDA", lambda it=kind: it == "annotation"
        events.append(event)
    assert [event.cat for event in live_events(events)] == ["kernel", "gpu_user_annotation", "gpu_memcpy"]


@pytest.mark.parametrize(
    ("name", "is_annotation", "category"),
    [
        ("cutmix", True, "user_annotation"),
        ("cudaGraph warm-up", True, "user_annotation"),
        ("custom_loss", False, "cpu_op"),
        ("cuLaunchKernel", False, "cuda_runtime"),
        ("hipMemcpyAsync", False, "cuda_runtime"),
    ],
)
def test_only_calls_of_a_runtime_are_such_when_torch_gives_no_categories(
    name: str, is_annotation: bool, category: str
) -> None:
    event = kineto_event({"name": name, "cat": "", "ts": 0, "dur": 90, "tid": 7, "args": {}})
    del event.activity_type
    event.device_type, event.is_user_annotation = lambda: "DeviceType.CPU", lambda: is_annotation
    assert [each.cat for each in live_events([event])] == [category]


def test_no_events_are_refused() -> None:
    with pytest.raises(TraceError, match="live has 0 entries"):
        from_events([])


def test_torch_profiler_is_read_live_and_from_its_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 4)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True, with_stack=True) as profiler:
        for _ in range(3):
            with torch.profiler.record_function("ProfilerStep#1"):
                model(torch.ones(2, 4)).sum().backward()
    events = profiler.profiler.kineto_results.events()
    live = analyze_trace(from_events(live_events(events)))
    file = tmp_path / "t.json"
    profiler.export_chrome_trace(str(file))
    written = analyze(file)
    assert [step.name for step in live.steps] == ["ProfilerStep#1"] * 3
    for ours, theirs in zip(live.steps, written.steps, strict=True):  # the file rounds times: one may change its step
        assert abs(ours.n_operators - theirs.n_operators) <= 1
    for ours, theirs in zip(live.steps, written.steps, strict=True):
        assert ours.duration_s == pytest.approx(theirs.duration_s, abs=2e-6)
    assert {each.name: each.calls for each in live.operators} == {each.name: each.calls for each in written.operators}
    assert [each.shapes for each in live.matrix_shapes] == [each.shapes for each in written.matrix_shapes]
    assert written.has_stacks
    assert live.has_stacks or not hasattr(events[0], "activity_type")  # older torch keeps stacks for files
    assert live.has_shapes
