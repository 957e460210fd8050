"""Dispatch modes that pass every operator on."""

import pytest
import torch

from lightning_perf.probes.sampled_steps import tracing


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
