"""Figures from the tests of the projects that the real traces come from."""

from typing import Any

import pytest

from .shared import golden, needs_shared_traces, record

pytestmark = needs_shared_traces

PAIR = ("resnet50-workers0.json.gz", "resnet50-workers4.json.gz")
DEVICE_SPANS = tuple(
    f"{name}.json.gz"
    for name in (
        *("owlv2-h100", "bert-small-h100", "qwen-h100", "elementwise-mi300", "gemm-few-tiles", "gemm-tall-skinny"),
        *("sdpa-short-mi300", "gpu-only-mi210", "sglang-decode"),
    )
)
OLD_NAMES = {
    "kernel": "Kernel", "memcpy": "Memcpy", "memset": "Memset", "runtime": "Runtime", "data_loading": "DataLoader",
    "cpu_op": "CPU Exec", "other": "Other",
}  # fmt: skip


@pytest.mark.parametrize("file", PAIR)
def test_step_categories_equal_those_of_the_old_tab(file: str) -> None:
    expected: dict[str, dict[str, int]] = golden(file)["steps_us"]
    steps = record(file).steps
    assert [step.name for step in steps] == [f"ProfilerStep#{number}" for number in expected]
    for step, figures in zip(steps, expected.values(), strict=True):
        for ours, theirs in OLD_NAMES.items():
            assert step.categories[ours] * 1e6 == pytest.approx(figures[theirs], abs=1), (step.name, ours)


@pytest.mark.parametrize("file", DEVICE_SPANS)
def test_device_activity_equals_the_reference(file: str) -> None:
    expected: dict[str, Any] = golden(file)
    device = record(file).device
    for seconds, key in (
        (device.compute_s, "computation_time"),
        (device.busy_s, "busy_time"),
        (device.idle_s, "idle_time"),
        (device.span_s, "total_time"),
        (device.memcpy_s, "total_memcpy_time"),
        (device.memcpy_exposed_s, "exposed_memcpy_time"),
        (device.communication_s, "total_comm_time"),
        (device.communication_exposed_s, "exposed_comm_time"),
    ):
        assert seconds * 1e3 == pytest.approx(expected[key]["ms"], rel=1e-4, abs=2e-5), key


@pytest.mark.parametrize("file", PAIR)
def test_no_tensor_core_is_used_when_the_reference_says_so(file: str) -> None:
    kernels = record(file).kernels
    assert golden(file)["tensor_core_pct"] == 0.0
    assert kernels.tensor_core_fraction == 0.0
    assert kernels.matrix_tensor_core_fraction == 0.0
    assert max(kernels.matrix_precisions, key=kernels.matrix_precisions.__getitem__) == "fp32"


@pytest.mark.parametrize("file", PAIR)
def test_occupancy_and_sm_efficiency_are_those_of_the_reference(file: str) -> None:
    kernels, expected = record(file).kernels, golden(file)
    assert kernels.sm_efficiency == pytest.approx(expected["sm_efficiency_pct"] / 100, abs=5e-4)
    assert kernels.occupancy == pytest.approx(expected["achieved_occupancy_pct"] / 100, abs=1e-4)


def test_matrix_kernels_take_two_thirds_when_the_reference_says_so() -> None:
    kernels = record(PAIR[0]).kernels
    assert sum(kernels.kinds[kind].share for kind in ("matmul", "convolution")) == pytest.approx(0.68, abs=0.01)


def test_driver_memory_calls_explain_the_idle_device_when_the_allocator_churns() -> None:
    result = record("ddp-resnet18-mi300.json.gz")
    free = result.allocator.calls[0]
    assert (free.name, free.n) == ("hipFree", 1360)
    assert free.total_s == pytest.approx(3.346, rel=0.02)
    assert result.allocator.exposed_s > 0.9 * result.device.idle_s
    assert result.startup is None  # 1,360 calls are no start-up
