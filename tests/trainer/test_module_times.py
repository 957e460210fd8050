"""Times of modules in real trainings: they add up, and nothing of the user's changes."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.probes.sampled_steps import probe as sampled_steps
from lightning_perf.records import ModuleProfile, Session

from .conftest import Make

N_STEPS, BATCH, WIDTH = 14, 8, 16


@pytest.fixture(autouse=True)
def _early_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_steps, "ROUNDS", (4,))
    monkeypatch.setattr(sampled_steps, "MAX_SHARE", float("inf"))


class Sleeper(torch.autograd.Function):
    """Sleeps backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Slow(nn.Module):
    """A layer that sleeps forward and backward, and takes and gives a dictionary."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        time.sleep(self.forward_s)
        return {"x": Sleeper.apply(self.layer(value["x"]), self.backward_s), "n": 3}


class Parts(LightningModule):
    """A slow part, one called twice, one frozen, one in place, one checkpointed, one that is not called."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.slow = Slow(0.010 * scale, 0.020 * scale)
        self.twice = Slow(0.005 * scale, 0.0)
        self.act = nn.ReLU(inplace=True)
        self.again = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2))
        self.same = nn.Identity()
        self.unused = nn.Linear(1, 1)
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.slow({"x": self.frozen(x)})
        value = self.twice(self.twice(value))
        x = self.act(self.same(value["x"]) + 1)
        return checkpoint(self.again, x.view(-1, WIDTH), use_reentrant=False)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fitted(make_trainer: Make, model: LightningModule, *callbacks: Any, depth: int = 1, **arguments: Any) -> Session:
    doctor = PerfDoctor(schedule=None, reports=(), memory=False, device_stats=False, module_depth=depth)
    make_trainer(doctor, *callbacks, **arguments).fit(model, data())
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    return doctor.session


def data() -> DataLoader:
    torch.manual_seed(3)
    return DataLoader(torch.randn(N_STEPS * BATCH, WIDTH), batch_size=BATCH)


def modules_of(session: Session) -> dict[str, ModuleProfile]:
    assert session.model_profile is not None, session.missing
    return {module.path: module for module in session.model_profile.modules}


def test_time_is_the_modules_own_when_it_sleeps(make_trainer):
    modules = modules_of(fitted(make_trainer, Parts()))
    assert modules["slow"].forward_s >= 0.010
    assert modules["slow"].backward_s >= 0.020
    assert modules["twice"].forward_s >= 0.010
    assert modules["twice"].calls == 2
    assert (modules.get("unused") is None) or not modules["unused"].forward_s
    costs_s = [module.forward_s + module.backward_s for module in modules.values()]
    assert costs_s == sorted(costs_s, reverse=True)


class Stopwatch(Callback):
    """Times forward and backward of the steps whose modules are watched, from outside."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"forward_s": [], "backward_s": []}
        self.begin_s = 0.0

    def on_train_batch_start(self, trainer: Any, module: Any, *args: Any) -> None:
        self.begin_s = time.perf_counter()

    def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self._add(module, "forward_s")

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        self.begin_s = time.perf_counter()

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self._add(module, "backward_s")

    def _add(self, module: Any, name: str) -> None:
        if torch.nn.modules.module._global_forward_pre_hooks:
            self.seconds[name].append(time.perf_counter() - self.begin_s)


def test_times_add_up_to_forward_and_backward_when_a_step_is_sampled(make_trainer):
    watch = Stopwatch()
    doctor = PerfDoctor(schedule=None, reports=(), memory=False, device_stats=False, arithmetic=False)
    make_trainer(doctor, watch).fit(Parts(scale=8.0), data())
    assert doctor.session is not None
    modules = modules_of(doctor.session)
    for field, seconds in watch.seconds.items():
        assert len(seconds) == 2
        total = sum(getattr(module, field) for module in modules.values())
        # At least the sleeps; twice as much if the time of inner modules counted for outer ones too.
        assert 0.160 <= total <= 1.3 * sum(seconds) / 2


def test_inner_modules_are_separate_when_the_depth_includes_them(make_trainer):
    modules = modules_of(fitted(make_trainer, Parts(scale=0.1), depth=2))
    assert modules["slow"].forward_s >= 0.001
    assert modules["slow.layer"].forward_s < modules["slow"].forward_s
    assert {"again.0", "twice.layer"} <= set(modules)


class Hooked(Callback):
    """Hooks of the user's, which must be called as often and in the same order; copies the module in each step."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.left: list[tuple[int, int]] = []

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        part = module.slow
        part.register_forward_pre_hook(lambda *args: self.calls.append("before"))
        part.register_forward_hook(lambda *args: self.calls.append("after 1"))
        part.register_forward_hook(lambda *args: self.calls.append("after 2"))
        part.layer.register_full_backward_hook(lambda *args: self.calls.append("backward"))

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        copied = pickle.loads(pickle.dumps(copy.deepcopy(module.again)))
        copied(torch.ones(1, WIDTH))


def test_users_hooks_survive_in_order_when_ours_come_and_go(make_trainer):
    hooked, model = Hooked(), Parts(scale=0.0)
    fitted(make_trainer, model, hooked)
    assert hooked.calls == ["before", "after 1", "after 2", "backward"] * N_STEPS
    for module in model.modules():
        n = 2 if module is model.slow else 0
        assert len(module._forward_hooks) == n
        assert len(module._forward_pre_hooks) == n // 2


@pytest.mark.parametrize("is_manual", [False, True], ids=["automatic", "manual"])
def test_training_is_the_same_to_the_bit_when_modules_are_timed(make_trainer, is_manual):
    class Manual(Parts):
        def __init__(self) -> None:
            super().__init__(scale=0.0)
            self.automatic_optimization = not is_manual

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            if is_manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                return None
            return loss

    def weights(*callbacks: Any) -> list[torch.Tensor]:
        loader = data()
        torch.manual_seed(4)
        model = Manual()
        make_trainer(*callbacks).fit(model, loader)
        return [*(p.detach() for p in model.parameters()), torch.get_rng_state()]

    doctor = PerfDoctor(schedule=None, reports=())
    watched, plain = weights(doctor), weights()
    assert doctor.session is not None
    modules = modules_of(doctor.session)
    assert modules["slow"].forward_s > 0
    assert modules["slow"].backward_s > 0
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))


def test_times_of_a_removed_module_are_reported(make_trainer):
    class Prunes(Parts):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == N_STEPS - 1:
                del self.frozen
                self.frozen = nn.Identity()
                del self.same

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            value = self.twice(self.slow({"x": self.frozen(x)}))
            return (self.same(value["x"]) if hasattr(self, "same") else value["x"]).square()

    doctor = PerfDoctor(schedule=None, reports=(), memory=False, device_stats=False, arithmetic=False)
    make_trainer(doctor).fit(Prunes(scale=0.0), data())
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    modules = modules_of(doctor.session)
    assert modules["same"].class_name == ""
    assert modules["frozen"].class_name == "Identity"
    assert modules["slow"].forward_s > 0
