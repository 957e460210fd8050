"""No file makes the reader crash: it gives a record that adds up, or a TraceError."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_perf.errors import TraceError
from lightning_perf.records import TraceRecord
from lightning_perf.traces import analyze, json_stream
from tests.fuzzing import FUZZ

from .events import SMALL, document, event

FIXTURE = gzip.decompress((Path(__file__).parent / "fixtures" / "cpu-plain.json.gz").read_bytes())
N_EXAMPLES = 120 * FUZZ
fuzzed = settings(
    max_examples=N_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
categories = st.sampled_from(
    (
        *("cpu_op", "Operator", "user_annotation", "python_function", "cuda_runtime", "Runtime", "kernel", "Kernel"),
        *("gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_driver", "mtia_ccp_events", "something_new"),
    )
)
names = st.sampled_from(
    (
        *("ProfilerStep#1", "ProfilerStep#2", "aten::mm", "aten::bmm", "aten::_softmax", "aten::convolution"),
        *("enumerate(DataLoader)#x.__next__", "Optimizer.step#SGD.step", "autograd::engine::evaluate_function: X"),
        *("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaFree", "aten::item", "volta_sgemm_nn"),
        *("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)", "ncclKernel_AllReduce"),
        *("train.py(3): f", "nccl:all_reduce", "aten::batch_norm", "aten::conv2d", "aten::add_"),
    )
)
times = st.integers(0, 3000) | st.floats(0, 3000, allow_nan=False)
shapes = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3)


@st.composite
def plausible(draw: Any) -> dict[str, Any]:
    arguments = {
        "correlation": draw(st.integers(0, 6)), "stream": draw(st.integers(0, 2)), "device": draw(st.integers(0, 1)),
        "Input Dims": draw(shapes), "Input type": draw(st.lists(st.sampled_from(["float", ""]), max_size=3)),
    }  # fmt: skip
    made = event(draw(categories), draw(names), draw(times), draw(times), tid=draw(st.integers(1, 3)))
    return made | {"args": arguments}


hostile = st.dictionaries(st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]), values)


def read_or_refuse(file: Path) -> TraceRecord | None:
    try:
        record = analyze(file)
    except TraceError:
        return None
    for step in (*record.steps, record.whole):
        assert sum(step.categories.values()) == pytest.approx(step.duration_s, rel=1e-9, abs=1e-9)
        assert min(step.categories.values()) >= 0
        assert step.busy_fraction is None or 0 <= step.busy_fraction <= 1
    if record.critical_path is not None:
        assert sum(record.critical_path.causes.values()) == pytest.approx(record.span_s, rel=1e-9, abs=1e-9)
        assert min(record.critical_path.causes.values(), default=0.0) >= 0
    for each in record.what_if:
        assert 0 <= each.low_s <= each.high_s <= each.step_s * (1 + 1e-12)
    if record.syncs and record.syncs.idle_after_s is not None and record.device:
        assert record.syncs.idle_after_s <= record.device.idle_s + record.span_s + 1e-9
    assert msgspec.json.decode(msgspec.json.encode(record), type=TraceRecord) == record
    return record


@fuzzed
@given(st.lists(plausible(), min_size=1, max_size=25))
def test_any_mixture_of_plausible_events_adds_up(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(document(events))
    assert read_or_refuse(file) is not None


@fuzzed
@given(st.lists(hostile, max_size=6), st.dictionaries(st.sampled_from(["distributedInfo", "deviceProperties"]), values))
def test_hostile_events_are_read_or_refused(tmp_path: Path, events: list[Any], fields: dict[str, Any]) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(json.dumps({**fields, "traceEvents": [*SMALL, *events]}).encode())
    read_or_refuse(file)


@fuzzed
@given(st.integers(0, len(FIXTURE) - 1), st.binary(max_size=12), st.integers(0, 40), st.sampled_from([1 << 23, 20_000]))
def test_damaged_bytes_are_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, inserted: bytes, n_lost: int, chunk: int
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    file = tmp_path / "t.json"
    file.write_bytes(FIXTURE[:at] + inserted + FIXTURE[at + n_lost :])
    read_or_refuse(file)


@fuzzed
@given(st.integers(0, 13_000), st.binary(min_size=1, max_size=4))
def test_damaged_gzip_is_read_or_refused(tmp_path: Path, at: int, inserted: bytes) -> None:
    packed = gzip.compress(FIXTURE, mtime=0)
    file = tmp_path / "t.json.gz"
    file.write_bytes(packed[:at] + inserted + packed[at + len(inserted) :])
    read_or_refuse(file)


@fuzzed
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "t.json"
    file.write_bytes(content)
    read_or_refuse(file)
