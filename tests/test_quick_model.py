from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightning_perf import ConfigError, measure_ceilings, memory_breakdown, quick_profile
from lightning_perf.dataset_contents import python_random_states
from lightning_perf.probes.model import ceilings
from lightning_perf.records import Ceilings, ModelProfile


@pytest.fixture(autouse=True)
def _known_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that needs no time to be measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ceilings, "measure", lambda device: fake())


def fake(**changes: Any) -> Ceilings:
    kind, name, version, n_threads = ceilings._identity(torch.device("cpu"))
    figures: dict[str, Any] = {
        "device": kind, "name": name, "torch": version, "n_threads": n_threads, "copy_bytes_per_s": 1e10,
        "launch_s": 1e-6, "matmul_flops_per_s": {"fp32": 1e11, "bf16": 4e11},
    }  # fmt: skip
    return Ceilings(**{**figures, **changes})


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))


def profiled(*args: Any, **kwargs: Any) -> ModelProfile:
    return quick_profile(*args, seconds=0.02, **kwargs).record


def test_profile_measures_a_training_step_by_default() -> None:
    profile = profiled(net(), torch.randn(8, 16))
    once = 2 * 8 * (16 * 32 + 32 * 4)
    assert profile.n_parameters == 16 * 32 + 32 + 64 + 32 * 4 + 4
    assert profile.n_samples == 8
    assert profile.forward_flops == once
    assert profile.backward_flops == 2 * once - 2 * 8 * 16 * 32
    assert profile.step_s is not None
    assert profile.forward_s is not None
    assert profile.n_timed >= 5
    assert not profile.is_optimizer_timed
    assert profile.memory is not None
    assert profile.memory.activations_bytes
    assert profile.utilisation is not None
    assert profile.utilisation.measured_flops_per_s == 1e11
    assert {module.path for module in profile.modules} >= {"0", "1", "3"}
    assert all(module.forward_s is not None for module in profile.modules if module.path)


def test_profile_measures_only_the_forward_pass_when_not_training() -> None:
    model = net().eval()
    profile = profiled(model, torch.randn(8, 16), train=False)
    assert profile.backward_flops is None
    assert profile.step_s is None
    assert profile.forward_s is not None
    assert profile.utilisation is not None


def test_model_is_left_as_it_was() -> None:
    model = net()
    x = torch.randn(8, 16)
    model(x).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [(p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None]
    state = torch.get_rng_state()
    profiled(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for parameter, (gradient, value) in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, value)
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_generators_of_python_and_numpy_are_restored() -> None:
    class Draws(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * random.random() * float(np.random.rand())

    before = python_random_states()
    profiled(Draws(3, 1), torch.randn(8, 3))
    assert python_random_states() == before


def test_buffer_that_the_forward_pass_replaces_is_restored() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer("mask", torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.mask) < len(x):
                self.mask = torch.ones(len(x), 1)
            return self.layer(x) * self.mask

    model = Masked()
    mask = model.mask
    profiled(model, torch.randn(8, 3))
    assert model.mask is mask
    assert torch.equal(mask, torch.ones(1))


def test_lazy_modules_are_initialized_and_profiled() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    assert profiled(model, torch.randn(8, 16)).forward_flops == 2 * 8 * 16 * 4
    assert memory_breakdown(nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), batch=torch.ones(8, 16)).record


def test_gradients_are_left_absent_when_there_were_none() -> None:
    model = net()
    profiled(model, torch.randn(8, 16))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "batch", [(torch.ones(2, 3), torch.ones(2, 3)), {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}]
)
def test_batch_may_be_arguments_by_position_or_name(batch: Any) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.layer(a + b)}

    assert profiled(Two(), batch).forward_flops == 2 * 2 * 3


def test_loss_of_the_users_own_begins_the_backward_pass() -> None:
    model = nn.Linear(4, 3)
    target = torch.tensor([0, 1])
    profile = profiled(model, torch.randn(2, 4), loss=lambda out: nn.functional.cross_entropy(out, target))
    assert profile.backward_flops == 2 * 2 * 4 * 3


def test_profile_reads_well_and_gives_its_figures() -> None:
    profile = quick_profile(net(), torch.randn(8, 16), seconds=0.02)
    text = profile.report()
    for shown in ("Compute cost of Sequential (cpu)", "forward", "samples/s",
                 "of the measured peak of 100 GFLOP/s", "Linear", "addmm", "activations"):  # fmt: skip
        assert shown in text
    assert profile.forward_flops == profile.record.forward_flops
    with pytest.raises(AttributeError):
        _ = profile.no_such_figure


def test_device_is_not_measured_when_ceilings_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda device: pytest.fail("measured"))
    profile = profiled(net(), torch.randn(8, 16), ceilings=False)
    assert profile.ceilings is None
    assert profile.utilisation is None
    assert "ceilings=False" in profile.missing["ceilings"]


def test_ceilings_that_others_disturbed_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", lambda device: fake(missing={"is_quiet": "other processes"}))
    profile = profiled(net(), torch.randn(8, 16))
    assert profile.ceilings is None
    assert profile.missing["ceilings"] == "other processes"


def test_measure_ceilings_uses_the_cache_unless_again_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_ceilings("cpu")
    monkeypatch.setattr(ceilings, "measure", lambda device: fake(copy_bytes_per_s=1.0))
    assert measure_ceilings("cpu").copy_bytes_per_s != 1.0
    assert measure_ceilings("cpu", again=True).copy_bytes_per_s == 1.0


def test_measure_ceilings_gives_the_record() -> None:
    assert measure_ceilings("cpu") == fake()
    for name in ("nonsense", "meta"):
        with pytest.raises(ConfigError, match=name):
            measure_ceilings(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net", None), "expected a torch.nn.Module"),
        ((net(), torch.randn(8, 3)), "model\\(batch\\) raised"),
        ((net(), torch.randn(8, 16), "yes"), "train='yes'"),
        ((nn.Identity(), torch.ones(2)), "^the model's output holds no"),
    ],
)
def test_bad_input_gives_one_clear_error(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quick_profile(*arguments, seconds=0.02)


def test_error_of_the_loss_is_not_blamed_on_the_batch() -> None:
    with pytest.raises(ConfigError, match=r"^loss\(output\) raised ZeroDivisionError"):
        profiled(net(), torch.randn(8, 16), loss=lambda out: 1 / 0)


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"seconds": 0}, {"loss": 3}, {"ceilings": 1}])
def test_bad_argument_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        quick_profile(net(), torch.randn(8, 16), **wrong)
