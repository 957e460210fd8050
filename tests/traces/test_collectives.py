"""Collectives: kind, size, bandwidth, what hides them, and what sharded training fetches ahead."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest

from lightning_perf.records import Communication
from lightning_perf.traces.collectives import bus_factor, collective_kind

from .events import analyzed, event, launched, requested
from .shared import index_rows, needs_shared_traces, record

JOB = {"rank": 0, "world_size": 4, "backend": "nccl"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("nccl:_all_gather_base", "all_gather"),
        ("c10d::_allgather_base_", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("nccl:broadcast", "broadcast"),
        ("gloo:reduce", "reduce"),
        ("c10d::barrier", "barrier"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "other"),
    ],
)
def test_kind_is_found_from_any_backends_name(name: str, kind: str) -> None:
    assert collective_kind(name) == kind


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1.0)]
)
def test_bus_factor_is_that_of_nccl_tests(kind: str, factor: float) -> None:
    assert bus_factor(kind, 8) == factor


def communication(tmp_path: Path, events: list[Any]) -> Communication:
    return analyzed(tmp_path, events, distributedInfo=JOB).communication


GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def test_kernel_gets_kind_size_and_group_from_the_call_that_launched_it(tmp_path: Path) -> None:
    sizes = {"In msg nelems": 1 << 20, "dtype": "BFloat16", "Group size": 2, "Collective name": "allreduce"}
    found = communication(tmp_path, requested("nccl:all_reduce", 1000, (1100, 2000), 5, GENERIC, **sizes))
    (row,) = found.collectives
    assert (row.kind, row.group_size, row.mean_bytes, row.n) == ("all_reduce", 2, 2 << 20, 1)
    assert row.total_s == row.exposed_s == pytest.approx(2e-3)
    assert row.bus_bytes_per_s == pytest.approx((2 << 20) / 2e-3)  # 2 (n - 1) / n is 1 for two ranks
    assert found.by_name == {"all_reduce": pytest.approx(2e-3)}


def test_kernels_own_arguments_count_where_the_host_side_has_none(tmp_path: Path) -> None:
    kernel = event(
        "kernel", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 100, 1000, tid=7, device=0, stream=9, correlation=3,
        **{"Collective name": "_reduce_scatter_base", "In msg nelems": 1 << 20, "dtype": "Float", "Group size": 4},
    )  # fmt: skip
    (row,) = communication(tmp_path, [kernel]).collectives
    assert (row.kind, row.group_size, row.mean_bytes) == ("reduce_scatter", 4, 4 << 20)
    assert row.bus_bytes_per_s == pytest.approx((4 << 20) * 0.75 / 1e-3)


def test_all_gather_counts_output_bytes_and_infers_the_group_size(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[1 << 21], [1 << 20], []], "Input type": ["float", "float", ""]}
    given = {"Input Dims": [[1 << 20]], "Input type": ["float"]}
    events = [
        event("cpu_op", "c10d::_allgather_base_", 1000, 30, **shapes),
        event("user_annotation", "nccl:_all_gather_base", 1002, 20, **given),
        *launched("ncclKernel_AllGather_RING_LL_Sum_int8_t(x)", 1004, 1100, 1000, 5),
    ]
    (row,) = communication(tmp_path, events).collectives
    assert (row.kind, row.group_size, row.mean_bytes) == ("all_gather", 2, 8 << 20)


def test_exposed_is_what_no_other_kernel_hides(tmp_path: Path) -> None:
    events = [
        *requested("nccl:all_reduce", 1000, (1100, 1000), 5, GENERIC),
        *launched("ampere_sgemm_128x64_tn", 1050, 1060, 440, 6),  # until 1500
    ]
    found = communication(tmp_path, events)
    assert found.total_s == pytest.approx(1e-3)
    assert found.exposed_s == pytest.approx(0.6e-3)
    assert found.collectives[0].exposed_s == pytest.approx(0.6e-3)
    assert found.collectives[0].bus_bytes_per_s is None  # no sizes were recorded
    assert found.small_per_step is None


def test_sizes_of_one_row_are_within_a_power_of_two(tmp_path: Path) -> None:
    events: list[Any] = []
    for i, n in enumerate((1000, 1023, 4096, 4097)):
        sizes = {"In msg nelems": n, "dtype": "Float", "Group size": 4}
        events += requested("nccl:all_reduce", 1000 * i, (1000 * i + 100, 100), i + 1, GENERIC, **sizes)
    rows = communication(tmp_path, events).collectives
    assert sorted((row.n, row.mean_bytes) for row in rows) == [(2, 4046), (2, 16386)]


GLOO = [
    event("user_annotation", "ProfilerStep#1", 0, 1000),
    event("cpu_op", "aten::mm", 100, 100),
    event("cpu_op", "autograd::engine::evaluate_function: X", 200, 700),  # its hooks wait in here
    event("cpu_op", "c10d::_reduce_scatter_base_", 210, 20),
    event("user_annotation", "gloo:all_reduce", 240, 400, tid=2, **{"Input Dims": [[256]], "Input type": ["float"]}),
    event("cpu_op", "aten::mul", 300, 100),
]


def test_on_a_cpu_operators_hide_collectives_and_the_engine_around_them_does_not(tmp_path: Path) -> None:
    found = communication(tmp_path, GLOO)
    assert found.total_s == pytest.approx(400e-6)
    assert found.exposed_s == pytest.approx(300e-6)


def test_exchange_time_is_that_of_the_step_that_waits_least(tmp_path: Path) -> None:
    def step(number: int, reduce_us: float) -> list[Any]:
        begin_us = 1000.0 * number
        return [
            event("user_annotation", f"ProfilerStep#{number}", begin_us, 900),
            event("cpu_op", "aten::mul", begin_us, 200),
            event("user_annotation", "gloo:all_reduce", begin_us + 200, reduce_us, tid=2),
        ]

    found = communication(tmp_path, [*step(1, 500), *step(2, 50), *step(3, 300)])
    assert found.exposed_s == pytest.approx(850e-6)
    assert found.least_exposed_s == pytest.approx(50e-6)
    assert communication(tmp_path, GLOO[1:]).least_exposed_s is None


def test_kind_of_gloos_all_reduce_is_the_requested_one(tmp_path: Path) -> None:
    (row,) = communication(tmp_path, GLOO).collectives
    assert (row.kind, row.mean_bytes, row.group_size) == ("reduce_scatter", 1024, 4)


def test_sharded_traffic_is_split_by_phase_and_overlap(tmp_path: Path) -> None:
    def gather(at_us: float, kernel: tuple[float, float], number: int) -> list[Any]:
        return requested("nccl:_all_gather_base", at_us, kernel, number, "ncclDevKernel_AllGather_RING_LL(x)")

    events = [
        event("user_annotation", "ProfilerStep#1", 0, 10000),
        event("user_annotation", "perfdoctor:forward", 0, 4000),
        event("user_annotation", "perfdoctor:backward", 4000, 5000),
        event("user_annotation", "FSDP::all_gather (0)", 90, 100),
        *gather(100, (200, 1000), 1),  # nothing computed meanwhile
        *launched("ampere_sgemm_128x64_tn", 150, 1200, 1000, 2),
        *gather(300, (1210, 900), 3),  # hidden
        *gather(4100, (4200, 1000), 4),
        *requested("nccl:_reduce_scatter_base", 6000, (6100, 500), 5, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)"),
    ]
    shards = {(one.kind, one.phase): one for one in communication(tmp_path, events).shards}
    assert set(shards) == {
        ("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward"),
    }  # fmt: skip
    forward = shards["all_gather", "forward"]
    assert (forward.n, forward.hidden_n) == (2, 1)
    assert forward.exposed_s == pytest.approx(1e-3)
    assert shards["all_gather", "backward"].hidden_n == 0


def test_gathers_of_no_sharded_training_are_not_called_so(tmp_path: Path) -> None:
    events = requested("nccl:_all_gather_base", 100, (200, 1000), 1, "ncclDevKernel_AllGather_RING_LL(x)")
    assert communication(tmp_path, events).shards == ()


# -- real traces ------------------------------------------------------------------------------------------------------

WITH_COLLECTIVES = [row for row in index_rows() if row.communication_ms > 0]
# The index cuts at the host's steps; on these the device works in them as well.
NEAR_THE_HOST = [row for row in WITH_COLLECTIVES if not row.file.startswith("resnet-checkpoint-fsdp")]


@needs_shared_traces
@pytest.mark.parametrize("row", NEAR_THE_HOST, ids=[row.file for row in NEAR_THE_HOST])
def test_exposed_time_of_steps_agrees_with_the_index(row: Any) -> None:
    result = record(row.file)
    exposed_ms = median(step.categories["communication"] for step in result.steps) * 1e3
    assert exposed_ms == pytest.approx(row.exposed_ms, rel=0.02)


@needs_shared_traces
@pytest.mark.parametrize("row", WITH_COLLECTIVES, ids=[row.file for row in WITH_COLLECTIVES])
def test_rows_add_up_to_all_collectives_on_real_traces(row: Any) -> None:
    found = record(row.file).communication
    assert sum(one.n for one in found.collectives) == found.n
    assert sum(one.total_s for one in found.collectives) == pytest.approx(sum(found.by_name.values()))
    assert all(one.exposed_s <= one.total_s for one in found.collectives)
    assert "other" not in found.by_name
    assert "Generic" not in found.by_name


@needs_shared_traces
def test_real_traces_have_sizes_groups_and_bandwidth() -> None:
    found = record("sampled-rank-0-of-128.json.gz").communication
    gathers = [one for one in found.collectives if one.kind == "all_gather"]
    assert [(one.group_size, one.mean_bytes) for one in gathers] == [(64, 1 << 30)]
    largest = record("a100-8-ranks-mix.json.gz").communication
    fastest = max(one.bus_bytes_per_s or 0.0 for one in largest.collectives)
    assert 100e9 < fastest < 300e9  # NVLink of an A100: 300 GB/s each way
    unsized = record("v100-ddp-unbucketed.json.gz").communication
    assert [(one.n, one.mean_bytes, one.bus_bytes_per_s) for one in unsized.collectives] == [(2020, None, None)]
