"""The tracer of a step's operators changes nothing, whatever kinds of tensors and operators the step has."""

from collections.abc import Callable
from typing import Any

import torch

from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.sampled_steps.operator_tracer import OperatorTracer


def traced(step: Callable[[], Any]) -> tuple[Any, OperatorTracer]:
    """Return what a step returns, and its tracer."""
    tracer = OperatorTracer(torch.device("cpu"), 0.0, lambda: "forward", now_ns)
    tracer.open()
    try:
        result = step()
    finally:
        assert tracer.close()
    assert not tracer.failure
    return result, tracer


TO_LIST = torch.Tensor.tolist
CALLED: list[Any] = []


class Meters(torch.Tensor):
    """A tensor with a method of its own, found as torch documents it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(func)
        found = super().__torch_function__(func, types, args, kwargs or {})
        return [f"{value} m" for value in found] if func is TO_LIST else found


def test_tensor_classes_get_the_methods_that_torch_gives_them() -> None:
    lengths = torch.ones(2).as_subclass(Meters)

    def step() -> Any:
        return lengths.tolist(), lengths.cpu().numpy().sum()

    CALLED.clear()
    expected, without = step(), list(CALLED)
    CALLED.clear()
    result, tracer = traced(step)
    assert result == expected == (["1.0 m", "1.0 m"], 2.0)
    assert without == CALLED
    assert {label for _, label, _ in tracer.n_syncs} == {"tolist", "cpu", "numpy"}


@torch.library.custom_op("lightning_perf_tests::index", mutates_args=())
def custom_index(place: int, values: torch.Tensor) -> torch.Tensor:
    """Return a row, by an operator that has the name of one of torch's and other arguments."""
    return values[place].clone()


def test_operators_of_libraries_are_not_taken_for_those_of_torch() -> None:
    result, tracer = traced(lambda: custom_index(1, torch.ones(2, 3)).sum().item())
    assert result == 3.0
    assert [label for _, label, _ in tracer.n_syncs] == ["item"]
