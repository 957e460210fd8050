"""A planted wait in loaders of other libraries: the finding names the library's call; workers are added."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_perf import PerfDoctor, run_reports
from lightning_perf.loader_kinds import inner_loader, keeps_state
from tests.treatments.test_loader_libraries import batches, every_library

from .conftest import Make


class Slow:
    """A collate function that waits, as one that asks a service does."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        time.sleep(0.02)
        return self.collate(samples)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.n_workers: list[int] = []

    def on_train_epoch_start(self) -> None:
        self.n_workers.append(inner_loader(self.trainer.train_dataloader).num_workers)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(batches([batch])[0]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@every_library
def test_planted_wait_is_named_and_treated_or_refused(
    make: Callable[[Path], Any],
    call: str,
    shards: int | None,
    tmp_path: Path,
    make_trainer: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_reports, "_REPORTING_ALLOWED_S", float("inf"))  # each epoch is diagnosed, however slow
    loader, net, doctor = make(tmp_path), Net(), PerfDoctor(apply=["loader-workers=1"], reports=(), schedule=None)
    inner = inner_loader(loader)
    inner.collate_fn = Slow(inner.collate_fn)
    make_trainer(doctor, max_epochs=7).fit(net, loader)
    starved = {finding.code: finding for finding in doctor.findings}["PD101"]
    assert starved.prescriptions[0].code.startswith(f"{call}(..., num_workers=")
    (applied,) = doctor.session.applied
    if keeps_state(loader):
        assert "checkpoints hold the state" in applied.reason
        assert set(net.n_workers) == {0}
    else:
        assert (applied.status, applied.finding) == ("applied", "PD101")
        assert net.n_workers == sorted(net.n_workers)
        assert net.n_workers[-1] == 1
    assert inner_loader(loader).num_workers == 0
