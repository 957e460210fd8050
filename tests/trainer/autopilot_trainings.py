"""Trainings in which the autopilot tries what is planted, with planted decisions, so that no clock matters."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.data import DataLoader, Dataset

from lightning_perf import PerfDoctor, autopilot
from lightning_perf.stats import sequential

from .conftest import Make, assert_nothing_left
from .models import Tiny

Plant = Callable[..., list[autopilot.Autopilot]]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Return a function that queues treatments with the decision that each gets after six pairs of blocks."""

    def planted(*treatments: str, verdicts: dict[str, str] | None = None) -> list[autopilot.Autopilot]:
        pilots: list[autopilot.Autopilot] = []
        begin, decide = autopilot.Autopilot.__init__, autopilot.Autopilot._decide
        current: list[str] = []

        def init(self: Any, *arguments: Any) -> None:
            begin(self, *arguments)
            pilots.append(self)
            self._next_sync = 4
            self._known |= {text.partition("=")[0] for text in treatments}
            specs = [autopilot.parse(text) for text in treatments]
            self._waiting = [(spec.text, "PD000", self._unit_of(spec)) for spec in specs]

        def decided(self: Any, *arguments: Any) -> Any:
            current[:] = [self._try.record.treatment] if self._try is not None else []
            return decide(self, *arguments)

        def verdict(self: Any) -> str | None:
            return (verdicts or {}).get(current[0], "undone") if len(self.logs) >= 3 else None

        monkeypatch.setattr(autopilot.Autopilot, "__init__", init)
        monkeypatch.setattr(autopilot.Autopilot, "_decide", decided)
        monkeypatch.setattr(sequential.BlockTrial, "verdict", verdict)
        monkeypatch.setattr(autopilot.Autopilot, "offer", lambda *_: None)
        monkeypatch.setattr(autopilot, "BUDGET_SHARE", 1e6)  # of seconds, of which a session holds 1e9
        monkeypatch.setattr(autopilot, "SLOW_FACTOR", 1e9)
        monkeypatch.setattr(autopilot, "BLOCK_STEPS", 4)
        monkeypatch.setattr(autopilot, "BLOCK_S", 1e9)
        return pilots

    return planted


class Model(Tiny):
    """Draws random numbers in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(self.drop(batch)).square().mean() + random.random() * 0.01
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Numbers(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Seen(Callback):
    """Notes batches, and settings that treatments change."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.settings: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch[:, 0].tolist())
        group = trainer.optimizers[0].param_groups[0]
        setting = (torch.is_anomaly_enabled(), torch.get_num_threads(), torch.get_float32_matmul_precision(),
                   bool(group.get("fused")))  # fmt: skip
        self.settings.append((*setting, trainer.train_dataloader.num_workers))


def train(
    make_trainer: Make, doctors: list[Any], data: Any = None, n_epochs: int = 12, model: Any = None, **arguments: Any
) -> tuple[Seen, dict[str, Any]]:
    """Return what a training saw and its results."""
    torch.manual_seed(3)
    random.seed(3)
    seen, model = Seen(), model if model is not None else Model()
    data = data if data is not None else DataLoader(Numbers(), batch_size=4, shuffle=True)
    trainer = make_trainer(seen, *doctors, max_epochs=n_epochs, **arguments)
    profiler = trainer.profiler
    trainer.fit(model, data)
    assert_nothing_left(trainer, profiler)
    assert trainer.train_dataloader is data
    weights = [parameter.tolist() for parameter in model.parameters()]
    state = (torch.get_rng_state().tolist(), random.getstate())
    return seen, {"losses": model.losses, "batches": seen.batches, "weights": weights, "random": state}


def doctor(safety: str = "exact", **arguments: Any) -> PerfDoctor:
    return PerfDoctor(autopilot=safety, **{"reports": (), "schedule": None, "probe_data": False, **arguments})


def decisions(one: PerfDoctor) -> dict[str, str]:
    assert one.session is not None
    assert one.session.probes_off == ()
    assert one.session.autopilot is not None
    return {each.treatment: each.status for each in one.session.autopilot.tries}
