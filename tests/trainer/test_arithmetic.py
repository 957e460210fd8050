"""One step of a real fit is counted, and the fit stays as it is."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from lightning.pytorch import LightningModule, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import ConfigError, PerfDoctor
from lightning_perf.probes.model import ceilings, fake_pass
from lightning_perf.probes.model.flops import ArithmeticCounter
from lightning_perf.probes.sampled_steps import probe as sampled_steps
from lightning_perf.records import Ceilings, Session

from .conftest import Make

N_BATCHES, BATCH = 20, 4


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Net(LightningModule):
    """Dropout, batch norm and a recurrent layer: what a changed random number or sum would show in."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3))
        self.memory = nn.LSTM(16, 8)
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.memory(self.body(batch[0]))[0].square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def fitted(make: Make, model: Net, doctor: PerfDoctor | None, **arguments: Any) -> Net:
    seed_everything(3, verbose=False)
    fresh = type(model)()
    data = DataLoader(TensorDataset(torch.randn(N_BATCHES * BATCH, 8)), BATCH, shuffle=True)
    if isinstance(arguments.get("strategy"), type):
        arguments["strategy"] = arguments["strategy"]()
    make(*([doctor] if doctor is not None else []), **arguments).fit(fresh, data)
    return fresh


def diagnosed(make: Make, model: Net, **arguments: Any) -> tuple[Net, Session]:
    doctor = PerfDoctor(schedule=None, reports=())
    fresh = fitted(make, model, doctor, **arguments)
    assert doctor.session is not None
    return fresh, doctor.session


ONCE = 2 * BATCH * (8 * 16 + 4 * 8 * (16 + 8))
FIRST_STATE = 2 * 8 * 4 * 8  # gradient of the LSTM's first state: computed by oneDNN's fused layer only, where it runs


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (Net(), {}),
        (Net(), {"accumulate_grad_batches": 3}),
        (Net(), {"precision": "bf16-mixed"}),
        (Net(), {"precision": "bf16-true"}),
        (Net(), {"gradient_clip_val": 0.5}),
        (Manual(), {}),
    ],
    ids=["plain", "accumulating", "bf16-mixed", "bf16-true", "clipping", "manual"],
)
def test_step_is_counted_and_the_training_is_the_same_bit_for_bit(
    make_trainer: Make, model: Net, arguments: dict[str, Any]
) -> None:
    plain = fitted(make_trainer, model, None, **arguments)
    watched, session = diagnosed(make_trainer, model, **arguments)
    assert watched.losses == plain.losses
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    profile = session.model_profile
    assert profile is not None
    assert session.probes_off == ()
    assert profile.forward_flops == ONCE
    fused = 2 * ONCE - 2 * BATCH * 8 * 16
    assert profile.backward_flops in (fused, fused - FIRST_STATE)
    assert profile.step == sampled_steps.COUNTED_STEP
    assert profile.n_samples == BATCH
    assert profile.precision == ("bf16" if "bf16" in arguments.get("precision", "") else "fp32")
    assert sum(module.forward_flops or 0 for module in profile.modules) == ONCE


def test_step_that_is_counted_is_in_no_statistic(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None, reports=(), memory=False, module_depth=0)
    fitted(make_trainer, Net(), doctor)
    without = PerfDoctor(schedule=None, reports=(), memory=False, module_depth=0, arithmetic=False)
    fitted(make_trainer, Net(), without)
    counts = [sum(e.n_steps for e in d.session.epochs) for d in (doctor, without)]  # type: ignore[union-attr]
    assert counts == [N_BATCHES, N_BATCHES]
    timed = [d.session.steady.n_steps + d.session.steady.n_warmup_steps for d in (doctor, without)]  # type: ignore[union-attr]
    assert timed[1] - timed[0] in (1, 2)  # a second step confirms what the first one computed in vain


def test_nothing_is_counted_when_switched_off(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None, reports=(), arithmetic=False, module_depth=0)
    fitted(make_trainer, Net(), doctor)
    assert doctor.session is not None
    assert doctor.session.model_profile is None
    assert "arithmetic=False" in doctor.session.missing["model_profile"]
    with pytest.raises(ConfigError, match="arithmetic=3"):
        PerfDoctor(arithmetic=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ceilings=3"):
        PerfDoctor(ceilings=3)  # type: ignore[arg-type]


class CompiledBody(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.compile(self.body, backend="eager")  # type: ignore[assignment]


class CompiledInPlace(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.compile(backend="eager")


class CompiledStep(Net):
    @torch.compile(backend="eager")
    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.memory(self.body(batch[0]))[0].square().mean()
        self.losses.append(loss.detach())  # type: ignore[arg-type]
        return loss


class Sharded(Net):
    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(self.body, mesh=self.device_mesh["data_parallel"])


class OneRank(ModelParallelStrategy):
    def __init__(self) -> None:
        super().__init__(data_parallel_size=1, tensor_parallel_size=1)


@pytest.fixture
def no_process_group_left() -> Iterator[None]:
    """Later tests start ranks of their own, which inherit the address that strategies write into the environment."""
    before = dict(os.environ)
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.needs_torch("2.6")  # that runs compiled code uncompiled, and has fully_shard
@pytest.mark.usefixtures("no_process_group_left")
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (CompiledBody(), {}),
        (CompiledInPlace(), {"precision": "bf16-mixed"}),
        (CompiledStep(), {}),
        (CompiledBody(), {"strategy": "ddp"}),
        (Sharded(), {"strategy": OneRank}),
    ],
    ids=["compiled", "compiled-in-place", "compiled-step", "compiled-ddp", "sharded"],
)
def test_hidden_step_is_counted_from_its_shapes_and_the_training_is_the_same_bit_for_bit(
    make_trainer: Make, model: Net, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "measure", fake_ceilings)
    monkeypatch.setattr(fake_pass, "LEAST_S", 60.0)  # however busy the machine is
    monkeypatch.setattr(fake_pass, "MOST_S", 60.0)
    ceilings.measured(torch.device("cpu"))
    plain = fitted(make_trainer, model, None, **arguments)
    watched, session = diagnosed(make_trainer, model, **arguments)
    assert watched.losses == plain.losses
    for a, b in zip((*plain.parameters(), *plain.buffers()), (*watched.parameters(), *watched.buffers()), strict=True):
        assert torch.equal(getattr(a, "_local_tensor", a), getattr(b, "_local_tensor", b))
    assert session.probes_off == ()
    assert "model_profile" not in session.missing
    profile = session.model_profile
    assert profile is not None
    assert profile.forward_flops == ONCE
    fused = 2 * ONCE - 2 * BATCH * 8 * 16
    assert profile.backward_flops in (fused, fused - FIRST_STATE)
    assert profile.basis == ("shapes" if type(model) is Sharded else "uncompiled")
    assert (profile.step, profile.n_samples) == (sampled_steps.COUNTED_STEP, BATCH)
    assert profile.precision == ("bf16" if "precision" in arguments else "fp32")
    assert profile.utilisation is not None
    assert profile.utilisation.measured_fraction is not None


@pytest.mark.needs_torch("2.6")
def test_reason_is_recorded_when_a_hidden_step_depends_on_values(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_pass, "LEAST_S", 60.0)  # however busy the machine is
    monkeypatch.setattr(fake_pass, "MOST_S", 60.0)

    class Branches(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            return x if x.sum() > 0 else -x

    class Model(Net):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.compile(Branches(*self.body), backend="eager")  # type: ignore[assignment]

    plain = fitted(make_trainer, Model(), None)
    watched, session = diagnosed(make_trainer, Model())
    assert watched.losses == plain.losses
    assert "depends on values of tensors" in session.missing["model_profile"]
    assert session.model_profile is None or session.model_profile.forward_flops is None


def test_reason_is_recorded_when_the_run_is_too_short(make_trainer: Make) -> None:
    _, session = diagnosed(make_trainer, Net(), limit_train_batches=sampled_steps.COUNTED_STEP)
    assert session.model_profile is None
    assert "too short" in session.missing["model_profile"]


def test_training_goes_on_when_counting_breaks(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fitted(make_trainer, Net(), None)

    def broken(*_: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(ArithmeticCounter, "_count", broken)
    watched, session = diagnosed(make_trainer, Net())
    assert watched.losses == plain.losses
    assert "planted" in session.missing["model_profile"]


def test_probe_is_switched_off_when_it_raises(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fitted(make_trainer, Net(), None)

    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(ArithmeticCounter, "profile", broken)
    watched, session = diagnosed(make_trainer, Net())
    assert watched.losses == plain.losses
    assert [off.probe for off in session.probes_off] == ["arithmetic"]
    assert session.steady is not None


def test_nothing_is_left_behind_when_the_counted_step_raises(make_trainer: Make) -> None:
    class Fails(Net):
        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            if batch_idx == sampled_steps.COUNTED_STEP:
                raise KeyError("planted")
            return super().training_step(batch, batch_idx)

    model = Fails()
    data = DataLoader(TensorDataset(torch.randn(N_BATCHES * BATCH, 8)), BATCH)
    with pytest.raises(KeyError, match="planted"):
        make_trainer(PerfDoctor(schedule=None, reports=())).fit(model, data)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_users_dispatch_mode_goes_on_when_it_was_entered_within_the_counted_step(make_trainer: Make) -> None:
    class Sees(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Sees.n += 1
            return func(*args, **(kwargs or {}))

    class Enters(Net):
        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            if batch_idx == sampled_steps.COUNTED_STEP:
                self.mode = Sees()
                self.mode.__enter__()
            return super().training_step(batch, batch_idx)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == sampled_steps.COUNTED_STEP + 3:
                self.mode.__exit__(None, None, None)
                Sees.n = -Sees.n

    _, session = diagnosed(make_trainer, Enters())
    assert Sees.n < -100  # three steps' operators, and none after it was left
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert "another dispatch mode" in session.missing["model_profile"]
    assert session.probes_off == ()


def fake_ceilings(device: torch.device) -> Ceilings:
    kind, name, version, n_threads = ceilings._identity(device)
    return Ceilings(device=kind, name=name, torch=version, n_threads=n_threads, copy_bytes_per_s=1e10, launch_s=1e-6,
                    matmul_flops_per_s={"fp32": 1e11, "bf16": 4e11})  # fmt: skip


def test_ceilings_measured_before_are_read(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "measure", fake_ceilings)
    ceilings.measured(torch.device("cpu"))
    _, session = diagnosed(make_trainer, Net())
    profile = session.model_profile
    assert profile is not None
    assert profile.ceilings == fake_ceilings(torch.device("cpu"))
    assert profile.utilisation is not None
    assert profile.utilisation.measured_flops_per_s == 1e11
    assert profile.bound is not None


def test_ceilings_are_forgotten_when_the_model_outran_them(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    slow = msgspec.structs.replace(fake_ceilings(device), matmul_flops_per_s={"fp32": 1.0})
    monkeypatch.setattr(ceilings, "measure", lambda device: slow)
    assert ceilings.measured(device) == ceilings.cached(device) == slow
    _, session = diagnosed(make_trainer, Net())
    assert session.model_profile is not None
    assert session.model_profile.ceilings is None
    assert "another program used the device" in session.missing["model_profile.ceilings"]
    assert ceilings.cached(device) is None


def test_device_is_measured_after_a_long_run_alone(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def measured(device: torch.device, limit_s: float) -> tuple[Ceilings, str]:
        assert limit_s >= 8.0
        asked.append(device)
        return fake_ceilings(device), ""

    monkeypatch.setattr(ceilings, "measured_in_child", measured)
    _, session = diagnosed(make_trainer, Net())
    assert asked == []
    assert "too much for a run" in session.missing["model_profile.ceilings"]
    monkeypatch.setattr(ceilings, "MAX_SHARE", 1e9)
    _, session = diagnosed(make_trainer, Net())
    assert asked == [torch.device("cpu")]
    assert session.model_profile is not None
    assert session.model_profile.ceilings is not None
    doctor = PerfDoctor(schedule=None, reports=(), ceilings=False)
    fitted(make_trainer, Net(), doctor)
    assert len(asked) == 1
    assert doctor.session is not None
    assert "ceilings=False" in doctor.session.missing["model_profile.ceilings"]


def test_modules_can_be_copied_and_pickled_within_sampled_steps(make_trainer: Make) -> None:
    class Copies(Net):
        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            for part in self.children():
                copied = pickle.loads(pickle.dumps(copy.deepcopy(part)))
                hooks = [*copied._forward_hooks.values(), *copied._forward_pre_hooks.values()]
                assert not any(hasattr(hook, "_function") for hook in hooks)
            return loss

    doctor = PerfDoctor(reports=(), schedule=None)
    fitted(make_trainer, Copies(), doctor)
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    assert doctor.session.model_profile is not None
    assert doctor.session.model_profile.forward_flops == ONCE


def test_attention_in_evaluation_keeps_its_fast_path_in_the_counted_step() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
            self.head = torch.nn.Linear(8, 2)

    model = Model()
    with ArithmeticCounter(model):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Again(Net):
    """Runs its closure before the optimizer runs it."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        optimizer.step(closure=optimizer_closure)


class Sharpness(Net):
    """Evaluates the gradient at other parameters first, as sharpness-aware minimization does."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()
        for parameter in self.parameters():
            parameter.data.add_(0.01 * parameter.grad)  # which autograd does not count as a version
        optimizer.step(closure=optimizer_closure)


class Echo(Net):
    """Takes two steps for each batch."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for _ in range(2):
            optimizer.step(closure=optimizer_closure)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01, fused=True)


@pytest.mark.parametrize(("model", "n"), [(Again(), 2), (Sharpness(), 1), (Echo(), 1), (Net(), 1), (Manual(), 1)])
def test_passes_with_the_same_parameters_are_counted(make_trainer: Make, model: Net, n: int) -> None:
    _, session = diagnosed(make_trainer, model)
    profile = session.model_profile
    assert profile is not None
    assert profile.n_passes == n
    assert profile.pass_site.startswith("test_arithmetic.py:") == isinstance(model, (Again, Sharpness, Echo))
    if n > 1:
        assert profile.pass_site == f"test_arithmetic.py:{Again.optimizer_step.__code__.co_firstlineno + 1}"
    assert any(finding.code == "PD610" for finding in session.findings) == (n > 1)
