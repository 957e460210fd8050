"""What a step waits for: every nanosecond of the analyzed span belongs to one cause."""

from pathlib import Path
from typing import Any

import pytest

from lightning_perf.records import CriticalPath
from lightning_perf.traces import analyze

from .events import analyzed, event, launched

MATMUL, COLLECTIVE, COPY_BACK = "volta_sgemm_nn", "ncclKernel_AllReduce", "Memcpy DtoH (Device -> Pageable)"


def _path(folder: Path, events: list[Any], step: tuple[int, int] | None = (0, 1000)) -> CriticalPath:
    marks = [event("user_annotation", "ProfilerStep#1", step[0], step[1] - step[0])] if step else []
    record = analyzed(folder, [*marks, *events])
    path = record.critical_path
    assert sum(path.causes.values()) == pytest.approx(record.span_s, rel=1e-9)
    return path


def _flat(lists: list[list[Any]]) -> list[Any]:
    return [each for one in lists for each in one]


def _us(path: CriticalPath) -> dict[str, int]:
    return {cause: round(seconds * 1e6) for cause, seconds in path.causes.items() if round(seconds * 1e6)}


def _waiting(call_us: int, end_us: int, name: str = "cudaStreamSynchronize") -> dict[str, Any]:
    return event("cuda_runtime", name, call_us, end_us - call_us)


def test_kernels_are_hidden_when_each_is_launched_after_the_one_before_has_ended(tmp_path):
    kernels = [launched(MATMUL, 100 * i, 100 * i + 10, 20, i + 1) for i in range(10)]
    path = _path(tmp_path, _flat(kernels), (0, 930))
    assert _us(path) == {"hidden": 180, "compute": 20, "launch": 50, "between": 680}
    assert path.kinds == {"matmul": pytest.approx(20e-6)}
    assert (path.late[0].site, path.late[0].n) == ("cudaLaunchKernel", 10)


@pytest.mark.parametrize(("call_us", "long_us"), [(10, 2990), (2500, 0)])
def test_gap_is_long_when_the_host_does_more_than_launch(tmp_path, call_us, long_us):
    """A launch itself may take long: the first of a kernel loads its code."""
    late = [
        event("cuda_runtime", "cudaLaunchKernel", 3100 - call_us, call_us, correlation=2),
        event("kernel", MATMUL, 3100, 400, tid=7, correlation=2, device=0, stream=7),
    ]
    step = event("user_annotation", "ProfilerStep#1", 0, 3500)
    record = analyzed(tmp_path, [step, *launched(MATMUL, 0, 10, 100, 1), *late])
    assert record.critical_path.long_gaps_s == pytest.approx(long_us * 1e-6)


def test_kernels_are_on_the_path_when_the_host_runs_ahead(tmp_path):
    kernels = [launched(MATMUL, 10 * i, 10 + 100 * i, 100, i + 1) for i in range(10)]
    path = _path(tmp_path, _flat(kernels), (0, 1010))
    assert _us(path) == {"compute": 1000, "launch": 5, "between": 5}
    assert path.kinds == {"matmul": pytest.approx(1e-3)}


def test_kernels_before_a_wait_stay_on_the_path_when_the_host_is_late_after_it(tmp_path):
    before = [launched(MATMUL, 10 * i, 10 + 100 * i, 100, i + 1) for i in range(5)]  # until 510
    wait = _waiting(60, 510)
    after = launched(MATMUL, 600, 610, 100, 9)
    path = _path(tmp_path, [*_flat(before), wait, *after], (0, 710))
    assert _us(path) == {"compute": 600, "sync": 100, "launch": 5, "between": 5}


def test_copies_from_ordinary_memory_count_when_the_call_returns_just_before_their_end(tmp_path):
    """The call stages the data itself: an H100 ends the copy some microseconds after the call."""
    upload = [
        event("cuda_runtime", "cudaMemcpyAsync", 10, 600, correlation=1),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 50, 567, tid=7, correlation=1, device=0, stream=7),
    ]
    events = [*launched(MATMUL, 0, 0, 10, 9), *upload, *launched(MATMUL, 900, 900, 100, 2)]
    # The device is idle after the copy because the host copied until then.
    assert _us(_path(tmp_path, events)) == {"compute": 110, "pageable_copy": 560 + 283, "hidden": 7, "queue": 40}
    syncs = analyze(tmp_path / "t.json").syncs
    assert (syncs.sites, syncs.idle_after_s, syncs.blocking_copy_n) == ((), 0.0, 0)


def test_copies_from_ordinary_memory_do_not_block_when_the_call_returns_before_their_middle(tmp_path):
    upload = [
        event("cuda_runtime", "cudaMemcpyAsync", 10, 50, correlation=1),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 50, 567, tid=7, correlation=1, device=0, stream=7),
    ]
    events = [*launched(MATMUL, 0, 0, 10, 9), *upload, *launched(MATMUL, 900, 900, 100, 2)]
    assert _us(_path(tmp_path, events))["hidden"] > 500


@pytest.mark.parametrize(("memory", "is_known"), [("Host", False), ("Pinned", True), ("Pageable", True)])
def test_memory_of_copies_is_missing_when_their_names_do_not_show_it(tmp_path, memory, is_known):
    copy = launched(f"Memcpy HtoD ({memory} -> Device)", 0, 10, 50, 1, "gpu_memcpy")
    record = analyzed(tmp_path, [event("cpu_op", "aten::copy_", 0, 9), *copy])
    assert ("h2d_pageable_n" not in record.missing) == is_known
    assert record.copies.h2d_pageable_n == (memory == "Pageable")


def test_device_is_idle_for_another_cause_when_the_host_sits_in_a_call_that_waits_for_it(tmp_path):
    events = [*launched(MATMUL, 0, 0, 100, 1), _waiting(200, 800), *launched(MATMUL, 850, 850, 150, 2)]
    path = _path(tmp_path, events)
    assert _us(path)["blocked"] == 600
    assert path.late[0].total_s == pytest.approx(750e-6)


def test_collectives_count_as_waiting_when_the_host_waits_for_them_and_is_late(tmp_path):
    copy = [
        event("cuda_runtime", "cudaMemcpyAsync", 20, 380, correlation=2),
        event("gpu_memcpy", COPY_BACK, 390, 10, tid=7, correlation=2, device=0, stream=7),
    ]
    collective = launched(COLLECTIVE, 10, 100, 290, 1)
    late = launched(MATMUL, 500, 510, 490, 3)
    path = _us(_path(tmp_path, [*launched(MATMUL, 0, 0, 100, 9), *collective, *copy, *late]))
    assert path["sync_communication"] == 290
    assert "communication" not in path
    assert path["sync"] == 110


def test_collectives_stay_on_the_path_when_the_host_is_late_without_having_waited(tmp_path):
    events = [*launched(COLLECTIVE, 0, 0, 300, 1), *launched(MATMUL, 500, 500, 500, 2)]
    assert _us(_path(tmp_path, events))["communication"] == 300


def test_kernels_before_a_fetch_stay_on_the_path_when_the_loader_is_late(tmp_path):
    fetch = event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 690)
    events = [*launched(MATMUL, 0, 0, 300, 1), fetch, *launched(MATMUL, 700, 700, 300, 2)]
    assert _us(_path(tmp_path, events)) == {"compute": 600, "loader": 400}


def test_copies_share_no_time_when_they_run_at_once(tmp_path):
    copies = [
        *launched("Memcpy HtoD (Pinned -> Device)", 0, 0, 600, 1, "gpu_memcpy"),
        event("cuda_runtime", "cudaMemcpyAsync", 5, 5, correlation=2),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 100, 900, tid=8, correlation=2, device=0, stream=8),
    ]
    assert _us(_path(tmp_path, copies)) == {"transfer": 600, "device_to_host": 400}


def test_start_and_end_of_a_recording_are_edges_when_it_has_no_steps(tmp_path):
    events = [
        event("cpu_op", "aten::mm", 0, 10),
        *launched(MATMUL, 400, 500, 100, 1),
        event("cpu_op", "aten::mm", 900, 100),
    ]
    assert _us(_path(tmp_path, events, None)) == {"compute": 100, "edges": 900}


def test_start_up_before_the_first_kernel_is_no_edge_when_a_recording_has_no_steps(tmp_path):
    start = event("cuda_runtime", "cudaFree", 100, 20_000)
    kernel = launched(MATMUL, 20_400, 20_500, 100, 1)
    assert _us(_path(tmp_path, [event("cpu_op", "aten::mm", 0, 10), start, *kernel], None)) == {
        "startup": 20_000, "edges": 500, "compute": 100,
    }  # fmt: skip


def test_operators_take_the_place_of_kernels_when_there_is_no_device(tmp_path):
    fetch = event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
    assert _us(_path(tmp_path, [fetch, event("cpu_op", "aten::mm", 300, 500)])) == {
        "loader": 300, "compute": 500, "between": 200,
    }  # fmt: skip


def test_operators_that_make_a_batch_belong_to_the_loader_when_there_is_no_device(tmp_path):
    fetch = event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300)
    makes, other = event("cpu_op", "aten::stack", 10, 280), event("cpu_op", "aten::mm", 50, 100, tid=2)
    assert _us(_path(tmp_path, [fetch, makes, event("cpu_op", "aten::mm", 300, 500)])) == {
        "loader": 300, "compute": 500, "between": 200,
    }  # fmt: skip
    basis = next(one for one in analyze(tmp_path / "t.json").what_if if one.cause == "loader").basis
    assert basis == "waiting for data: 0.3 ms of a 1.0 ms step"
    # What another thread computes meanwhile hides a part of the wait.
    assert _us(_path(tmp_path, [fetch, makes, other])) == {"loader": 200, "compute": 100, "between": 700}


def test_there_is_no_critical_path_when_a_gpu_was_not_recorded(tmp_path):
    events = [event("cpu_op", "aten::mm", 0, 10), event("cuda_runtime", "cudaLaunchKernel", 2, 5, correlation=1)]
    assert analyzed(tmp_path, events).critical_path is None
