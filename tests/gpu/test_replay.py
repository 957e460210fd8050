"""Operators replayed on a real device: what is measured, and that the training stays the same."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from lightning_perf import PerfDoctor
from lightning_perf.probes.replay import probe as replay_probe
from lightning_perf.records import Session

from .trainings import TRAININGS, loader_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]


class Losses(Callback):
    """Keep every loss, as a tensor on the device."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *rest: Any) -> None:
        self.values.append(outputs["loss"].detach().clone())


class Trained(NamedTuple):
    """What a training left behind."""

    losses: torch.Tensor
    peak_bytes: int
    stream: torch.Tensor
    precision: str
    session: Session | None


@pytest.fixture(autouse=True)
def _time_to_load_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of a kernel loads its code, for which short trainings have no time."""
    monkeypatch.setattr(replay_probe, "LEAST_S", 5.0)


def trained(name: str, folder: Path, with_doctor: bool, schedule: tuple[int, int, int, int] | None = None) -> Trained:
    training = TRAININGS[name]
    gc.collect()  # batches of the training before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seed_everything(1, verbose=False)
    losses = Losses()
    doctor = PerfDoctor(out_dir=folder, reports=("json",), **({"schedule": schedule} if schedule is not None else {}))
    trainer = Trainer(
        accelerator="cuda", devices=1, max_epochs=2, limit_train_batches=30, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=[losses, *([doctor] if with_doctor else [])], **training.trainer,
    )  # fmt: skip
    trainer.fit(training.module(), loader_of(training))
    return Trained(
        torch.stack(losses.values).cpu(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.get_rng_state(),
        torch.get_float32_matmul_precision(),
        doctor.session,
    )


@pytest.mark.parametrize("name", ["fp32-matmul", "launch-bound"])
def test_training_is_the_same_bit_for_bit_when_operators_were_replayed(name: str, tmp_path: Path) -> None:
    without = trained(name, tmp_path, with_doctor=False)
    beside = trained(name, tmp_path, with_doctor=True)
    assert torch.equal(without.losses, beside.losses)
    assert torch.equal(without.stream, beside.stream)
    assert without.peak_bytes == beside.peak_bytes
    assert without.precision == beside.precision
    session = beside.session
    assert session is not None
    assert not session.probes_off
    if name == "fp32-matmul":
        assert session.replay is not None
        assert any(result.speedup is not None for result in session.replay.results), session.replay


def test_lower_precision_is_promised_as_measured_when_products_are_full_precision(tmp_path: Path) -> None:
    # A window times the operators on the device: without one, no gain is certain.
    session = trained("fp32-matmul", tmp_path, with_doctor=True, schedule=(10, 2, 5, 1)).session
    assert session is not None
    (finding,) = (finding for finding in session.findings if finding.code == "PD301")
    assert finding.gain is not None, session.replay
    assert finding.gain.low > 1.5
    assert finding.severity in ("medium", "high")
