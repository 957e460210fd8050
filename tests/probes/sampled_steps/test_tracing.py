"""Dispatch modes that pass every operator on."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_perf.probes.sampled_steps import tracing
from lightning_perf.seams import Undos


class Meters(torch.Tensor):
    """A tensor with a class of its own."""


@pytest.mark.parametrize("is_old", [True, False])
def test_tensors_change_their_class_below_a_mode(monkeypatch: pytest.MonkeyPatch, is_old: bool) -> None:
    if not is_old and tracing._refuses_subclasses:
        pytest.skip("this torch refuses it")
    monkeypatch.setattr(tracing, "_refuses_subclasses", is_old)
    mode = tracing.PassiveMode()
    mode.__enter__()
    try:
        assert type(torch.ones(2).as_subclass(Meters)) is Meters
        assert type(torch.ones(2).as_subclass(Meters).as_subclass(torch.Tensor)) is torch.Tensor
    finally:
        tracing.leave_mode(mode)
    assert "as_subclass" not in vars(torch.Tensor)


class Passing(TorchDispatchMode):
    """A mode of the user's."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Labeled(torch.Tensor):
    """A tensor with labels, as in PINA."""

    def __new__(cls, value, labels):
        return super().__new__(cls, value)

    def __init__(self, value, labels):
        self.labels = labels


def test_tensors_of_subclasses_are_created_below_a_mode() -> None:
    weight, new = torch.ones(2, requires_grad=True), vars(Labeled)["__new__"]
    mode = tracing.PassiveMode()
    mode.__enter__()
    try:
        labeled = Labeled(2 * weight, ["x", "y"])
        assert type(labeled) is Labeled
        assert labeled.labels == ["x", "y"]
        assert type(labeled * 2) is Labeled
        (labeled * 3).sum().backward()
        assert [type(Meters(value)) for value in (torch.ones(2), [1.0, 2.0], 2)] == [Meters] * 3
        assert type(torch.Tensor([1.0])) is torch.Tensor
        assert type(torch.nn.Parameter(torch.ones(2))) is torch.nn.Parameter
        with Passing(), pytest.raises(RuntimeError, match="already associated"):
            Meters(torch.ones(2))  # as without ours
    finally:
        tracing.leave_mode(mode)
    assert weight.grad.tolist() == [6.0, 6.0]
    assert vars(Labeled)["__new__"] is new
    assert "__new__" not in vars(Meters)
    assert type(Meters([1.0])) is Meters


def test_class_is_restored_after_the_last_of_two_trainings_whose_steps_overlap() -> None:
    one, other = Undos(), Undos()
    tracing._allow_subclasses(one)
    tracing._allow_subclasses(other)
    one.close()
    assert "__new__" in vars(Meters)
    other.close()
    assert "__new__" not in vars(Meters)
