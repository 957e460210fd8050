"""The user's code in stacks that the profiler of torch 1.8 to 1.11 wrote into the arguments of operators."""

from typing import Any

import pytest

from lightning_perf.records import TraceRecord

from .events import analyzed, event

STACK = {"Call stack": "torch/nn/functional.py(9): linear;train.py(7): training_step;<built-in method run>"}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> TraceRecord:
    """A step in which one operator copies, and one waits for the copy and launches a kernel late."""
    events: list[dict[str, Any]] = [
        event("Operator", "ProfilerStep#1", 0, 1000),
        event("Operator", "aten::copy_", 10, 60, **STACK),
        event("Runtime", "cudaMemcpyAsync", 20, 10, correlation=1),
        event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 30, 100, tid=7, correlation=1, device=0, stream=7),
        event("Operator", "aten::item", 100, 60, **STACK),
        event("Runtime", "cudaStreamSynchronize", 110, 30),
        event("Operator", "aten::addmm", 500, 60, **STACK),
        event("Runtime", "cudaLaunchKernel", 510, 5, correlation=2),
        event("Kernel", "sgemm", 520, 100, tid=7, correlation=2, device=0, stream=7),
    ]
    return analyzed(tmp_path_factory.mktemp("stacks"), events)


def test_copies_waits_and_late_launches_name_the_users_code_when_only_operators_have_a_stack(
    record: TraceRecord,
) -> None:
    found = [(one.site, one.function) for one in (record.copies.sites[0], record.syncs.sites[0])]
    found += [(one.site, one.function) for one in record.critical_path.late if one.site]
    assert found == [("train.py:7", "training_step")] * 3
