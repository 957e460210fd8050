"""A fit's record says which operators computed what was known before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfDoctor
from lightning_perf.probes.sampled_steps import known_result_calls, known_results
from lightning_perf.probes.sampled_steps.known_results import ResultTracker

from .conftest import Make

N, WIDTH = 80, 32


class Head(LightningModule):
    """Trains a layer on a frozen one; the table is constant, the average of the weights is not."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = not isinstance(self, Manual)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(WIDTH, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Linear(1024, WIDTH))
        self.register_buffer("average", torch.zeros(WIDTH, WIDTH))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self.frozen(batch[0])
        table = torch.arange(float(WIDTH)).outer(torch.arange(float(WIDTH))).cos()
        loss = F.mse_loss(self.head(h) @ table, batch[0] @ self.average.exp())
        self.log("error", (self.head(h) - batch[0]).abs().mean())
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        self.average.data.lerp_(self.head[2].weight.data[:WIDTH, :WIDTH], 0.1)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Manual(Head):
    """Steps its optimizer between two passes through the same layer."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for _ in range(2):
            self.optimizers().zero_grad()
            self.manual_backward(self.head(batch[0]).square().mean())
            self.optimizers().step()


class Measured(Head):
    """Computes a value beside its loss, and gives it to ``use``, which logs it and may use it in another way."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.use, self.kept = use, []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.mse_loss(self.head(batch[0]), batch[0])
        with torch.no_grad():
            value = self.head(-batch[0]).abs().mean()
        return loss * (self.use(self, value) or 1.0)


def log_detached(module: Measured, value: Any) -> None:
    module.log("error", value.detach(), on_step=True, on_epoch=True)


def log_and_scale(module: Measured, value: Any) -> Any:
    module.log("error", value)
    return 1.0 + 0.1 * value


def log_and_compare(module: Measured, value: Any) -> None:
    module.log("error", value)
    assert value >= 0


def log_and_keep(module: Measured, value: Any) -> None:
    module.log("error", value)
    module.kept.append(value.detach())


def log_and_average(module: Measured, value: Any) -> None:
    module.log("error", value)
    module.average.data.lerp_(value.expand_as(module.average), 0.1)


def log_and_convert(module: Measured, value: Any) -> None:
    module.log("error", value)
    assert value.detach().numpy() >= 0


def log_buffer(module: Measured, value: Any) -> None:
    module.average.mul_(0.9).add_(value, alpha=0.1)
    module.log("error", module.average[0, 0])


class Returned(Measured):
    """Returns the value, and reads it in a hook."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.mse_loss(self.head(batch[0]), batch[0])
        with torch.no_grad():
            value = self.head(-batch[0]).abs().mean()
        self.log("error", value)
        return {"loss": loss, "error": value}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.kept.append(float(outputs["error"]))


class Plateau(Measured):
    """Lowers its learning rate by the logged value."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "monitor": "error_step", "interval": "step"}}  # fmt: skip


class Sum(Head):
    """Returns a sum as the loss, which is not logged; autograd runs no operator for the sum."""

    weight = 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        h = self.head(batch[0])
        return h.square().mean() + self.weight * self.head(h).abs().mean()


class WithoutWeight(Sum):
    weight = 0.0


def fit(make_trainer: Make, model: LightningModule) -> PerfDoctor:
    doctor = PerfDoctor(reports=(), ceilings=False)
    data = TensorDataset(torch.randn(N, WIDTH))
    make_trainer(doctor, max_epochs=4).fit(model, DataLoader(data, batch_size=4))
    return doctor


def known_in(doctor: PerfDoctor) -> dict[str, Any]:
    profile = doctor.session.model_profile
    assert profile is not None
    assert "known_results" not in profile.missing
    return {one.kind: one for one in profile.known_results}


def test_each_kind_is_recorded_with_its_line(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_result_calls, "_MUCH", 0.0)  # whatever the neighbors do meanwhile
    monkeypatch.setattr(known_results, "_LEAST_PART", 0.0)
    found = known_in(fit(make_trainer, Head()))
    first = Head.training_step.__code__.co_firstlineno
    lines = {kind: int(one.site.partition(":")[2]) - first for kind, one in found.items() if one.site}
    assert set(found) == {"constant", "twice", "frozen", "logged"}
    assert all(Path(__file__).name in one.site for one in found.values() if one.site)
    assert lines.items() <= {"constant": 2, "twice": 4, "frozen": 1, "logged": 4}.items()
    assert found["constant"].n_operators == 2  # not of the average
    assert found["twice"].n_operators == 4


def test_a_step_of_the_optimizer_makes_results_new(make_trainer: Make) -> None:
    assert "twice" not in known_in(fit(make_trainer, Manual()))


def test_only_what_is_multiplied_by_zero_counts_as_such(make_trainer: Make) -> None:
    assert "zeroed" not in known_in(fit(make_trainer, Sum()))
    found = known_in(fit(make_trainer, WithoutWeight()))["zeroed"]
    assert found.n_operators == 6  # three layers, tanh, absolute value and mean


def test_results_that_are_only_logged_are_recorded_with_their_line(make_trainer: Make) -> None:
    found = known_in(fit(make_trainer, Measured(log_detached)))["logged"]
    first = Measured.training_step.__code__.co_firstlineno
    assert found.site == f"{Path(__file__).name}:{first + 3}"
    assert found.n_operators == 7  # three layers, tanh, the minus sign, absolute value and mean


@pytest.mark.parametrize("log", [Fabric.log, lambda fabric, *item: fabric.log_dict(dict([item]))])
def test_results_that_are_only_logged_by_fabric_are_recorded(log: Any) -> None:
    doctor = PerfDoctor(reports=(), ceilings=False)
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=doctor)
    head = Head().head
    model, optimizer = fabric.setup(head, torch.optim.SGD(head.parameters(), 0.1))
    doctor.watch(model, optimizer)
    for _ in range(4):
        for (batch,) in doctor.steps(DataLoader(TensorDataset(torch.randn(N, WIDTH)), batch_size=4)):
            with torch.no_grad():
                log(fabric, "error", model(-batch).abs().mean())
            fabric.backward(F.mse_loss(model(batch), batch))
            optimizer.step()
            optimizer.zero_grad()
    doctor.close()
    assert known_in(doctor)["logged"].n_operators >= 5


@pytest.mark.parametrize(
    "use", [log_and_scale, log_and_compare, log_and_keep, log_and_average, log_and_convert, log_buffer]
)
def test_logged_results_that_something_else_uses_do_not_count(make_trainer: Make, use: Any) -> None:
    assert "logged" not in known_in(fit(make_trainer, Measured(use)))


@pytest.mark.parametrize("kind", [Returned, Plateau])
def test_logged_results_that_a_hook_or_a_scheduler_reads_do_not_count(make_trainer: Make, kind: Any) -> None:
    assert "logged" not in known_in(fit(make_trainer, kind(log_detached)))


def test_a_failure_to_follow_is_a_reason(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResultTracker, "_add", lambda *_: 1 / 0)
    profile = fit(make_trainer, Head()).session.model_profile
    assert profile is not None
    assert profile.missing["known_results"] == "ZeroDivisionError: division by zero"
    assert profile.forward_flops
