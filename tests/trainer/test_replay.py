"""Operators of a real fit are replayed: findings agree with the record, and the fit stays as it is."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, seed_everything
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfDoctor, load, run, run_reports
from lightning_perf.probes.model import flops
from lightning_perf.probes.replay import probe as probe_module
from lightning_perf.records import Session
from lightning_perf.run import DoctorRun

from .conftest import Make

N_BATCHES, BATCH = 30, 64


class Net(LightningModule):
    """Mostly matrix multiplication, with a per-tensor optimizer; dropout reveals changed random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 256), nn.Dropout(0.3), nn.Linear(256, 256), nn.Linear(256, 256))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.body(batch[0]).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01, foreach=False)


def fitted(make: Make, doctor: PerfDoctor | None, kind: type[Net] = Net) -> tuple[Net, tuple[Any, ...]]:
    """Fit for two epochs; return the module, and all state that a replay could have changed."""
    seed_everything(3, verbose=False)
    net = kind()
    data = DataLoader(TensorDataset(torch.randn(N_BATCHES * BATCH, 8)), BATCH, shuffle=True)
    make(*([doctor] if doctor is not None else []), max_epochs=2).fit(net, data)
    state = (
        net.losses, [value.tolist() for value in net.state_dict().values()], torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(), random.getstate(), torch.get_num_threads(), torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision(), torch.get_default_dtype(),
    )  # fmt: skip
    return net, state


def diagnosed(make: Make, **arguments: Any) -> Session:
    doctor = PerfDoctor(schedule=None, reports=(), ceilings=False, select=("PD301", "PD308"), **arguments)
    fitted(make, doctor)
    assert doctor.session is not None
    return doctor.session


def test_finding_agrees_with_the_replay_whatever_the_cpu(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "LEAST_S", 5.0)
    session = diagnosed(make_trainer)
    assert session.replay is not None, session.missing
    results = {result.treatment: result for result in session.replay.results}
    asked = {"PD301": "precision-bf16", "PD308": "fused-optimizer"}
    assert results.keys() <= set(asked.values())
    findings = {finding.code: finding for finding in session.findings}
    for code, treatment in asked.items():
        finding, result = findings.get(code), results.get(treatment)
        if finding is None:
            continue  # its symptom is absent here, or it was measured not to be faster
        if result is None or result.speedup is None or result.speedup.low <= 1:  # refused, or undecided by the end
            assert (finding.severity, finding.gain) == ("low", None)
            assert "not measured" in finding.summary
        else:
            assert finding.gain is not None
            assert finding.gain.method == "replayed"


def test_training_is_the_same_when_operators_are_replayed(make_trainer: Make) -> None:
    _, alone = fitted(make_trainer, None)
    doctor = PerfDoctor(schedule=None, reports=(), ceilings=False)
    _, beside = fitted(make_trainer, doctor)
    assert doctor.session is not None
    assert doctor.session.replay is not None
    assert alone == beside


def test_nothing_is_replayed_when_the_scripts_hooks_would_see_it(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None, reports=(), ceilings=False)
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        fitted(make_trainer, doctor)
    assert doctor.session is not None
    assert doctor.session.replay is None
    assert "hooks on saved tensors" in doctor.session.missing["replay"]


def test_replay_is_a_reason_when_it_fails(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(probe_module, "compare", broken)
    session = diagnosed(make_trainer)
    assert session.run.status == "finished"
    assert session.probes_off == ()
    assert session.replay is not None
    assert {result.reason for result in session.replay.results} == {"RuntimeError: broken"}


def test_nothing_is_replayed_when_switched_off(make_trainer: Make) -> None:
    session = diagnosed(make_trainer, replay=False)
    assert session.replay is None
    assert session.missing["replay"] == "replay=False"
    assert all(finding.gain is None for finding in session.findings if finding.code in ("PD301", "PD308"))


def test_replay_is_charged_to_reporting_when_an_epoch_ends(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = 0.0

    def replay(self: DoctorRun) -> None:
        nonlocal clock_s
        clock_s += 0.1

    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock_s))
    monkeypatch.setattr(DoctorRun, "_replay", replay)
    spent_s: list[float] = []
    can_afford = run_reports.RunReports.can_afford_epoch
    monkeypatch.setattr(
        run_reports.RunReports,
        "can_afford_epoch",
        lambda self, wall_s: spent_s.append(self.spent_s) or can_afford(self, wall_s),
    )
    fitted(make_trainer, PerfDoctor(schedule=None, reports=(), ceilings=False))
    assert spent_s == pytest.approx([0.0, 0.1])


def test_overhead_holds_a_replay_once_when_it_ran_in_a_hook(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = probe_module.ReplayProbe.answer

    def answer(self: probe_module.ReplayProbe, *args: Any) -> bool:
        asked = real(self, *args)
        self.spent_ns = 10**15  # of a clock that the hooks do not have
        return asked

    monkeypatch.setattr(probe_module.ReplayProbe, "answer", answer)
    assert diagnosed(make_trainer).overhead.reporting_s < 1e5


class Words(Net):
    """Learns one word in four; the others are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 2000))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        labels = torch.arange(BATCH).where(torch.arange(BATCH) % 4 == 0, -100)
        return nn.functional.cross_entropy(self.body(batch[0]), labels)


def test_output_layer_is_replayed_without_the_targets_that_the_loss_ignores(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor(schedule=None, reports=("json",), out_dir=tmp_path, ceilings=False, select=("PD325",))
    fitted(make_trainer, doctor, Words)
    session = load(tmp_path)
    assert session.model_profile is not None
    targets = session.model_profile.targets
    assert targets is not None
    assert (targets.n_targets, targets.n_ignored, targets.n_classes) == (BATCH, BATCH * 3 // 4, 2000)
    assert targets.site.startswith("test_replay.py:")
    assert session.replay is not None, session.missing
    assert [result.treatment for result in session.replay.results] == ["targets=0.25"]


class FixedTexture(Net):
    """Compares what it makes in a fixed layer, whose parameters get gradients that no optimizer uses."""

    def __init__(self) -> None:
        super().__init__()
        self.texture = nn.Linear(256, 256)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        made = self.body(batch[0])
        return (self.texture(made) - self.texture(made.detach())).abs().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.body.parameters(), lr=0.01)


def test_both_uses_of_a_layer_are_replayed_without_gradients_that_no_optimizer_uses(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "LEAST_S", 5.0)
    changed: list[str] = []
    treat = probe_module.apply_treatment

    def recorded(*arguments: Any) -> Any:
        treated = treat(*arguments)
        changed.extend(work.calls[0].name for work in treated.works)
        return treated

    monkeypatch.setattr(probe_module, "apply_treatment", recorded)
    fitted(make_trainer, PerfDoctor(schedule=None, reports=(), ceilings=False, select=("PD323",)), FixedTexture)
    assert changed == ["aten::addmm", "aten::addmm", "aten::sub"]


class LastPosition(LightningModule):
    """Compute scores of all positions, and the loss from those of the last one."""

    def __init__(self, returns_scores: bool) -> None:
        super().__init__()
        self.body, self.returns_scores = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 50)), returns_scores

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        scores = self.body(batch[0])
        loss = scores[:, -1].square().mean()
        return {"loss": loss, "scores": scores} if self.returns_scores else {"loss": loss}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.parametrize("returns_scores", [False, True])
def test_all_rows_are_needed_when_callbacks_get_them(make_trainer: Make, returns_scores: bool) -> None:
    doctor = PerfDoctor(schedule=None, reports=(), ceilings=False)
    data = DataLoader(TensorDataset(torch.randn(60, 10, 8)), 4)
    make_trainer(doctor).fit(LastPosition(returns_scores), data)
    assert doctor.session is not None
    assert doctor.session.model_profile is not None
    assert (doctor.session.model_profile.cheaper is None) == returns_scores


class Packs(LightningModule):
    """Runs an LSTM over packed sequences; with ``keeps_state``, its state is the first one of the next batch."""

    def __init__(self, keeps_state: bool, **more: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True, num_layers=2, dropout=0.2, **more)
        self.keeps_state, self.state = keeps_state, None
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        lengths = 1 + torch.arange(len(batch[0])) % 6
        packed = pack_padded_sequence(batch[0], lengths, batch_first=True, enforce_sorted=False)
        _, state = self.lstm(packed, self.state)
        if self.keeps_state:
            self.state = tuple(each.detach() for each in state)
        loss = state[0][-1].square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.parametrize(
    ("keeps_state", "more", "is_found"),
    [(False, {}, True), (True, {}, False), (False, {"bidirectional": True}, False)],
)
def test_packed_sequences_are_found_when_a_padded_batch_gives_what_is_read(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, keeps_state: bool, more: dict[str, Any], is_found: bool
) -> None:
    monkeypatch.setattr(flops, "MAX_COST_S", math.inf)  # on a busy machine, too
    data = TensorDataset(torch.randn(60, 6, 4))
    fits: list[Packs] = []
    doctor = PerfDoctor(schedule=None, reports=(), ceilings=False, select=("PD335",))
    for callbacks in ([], [doctor]):
        seed_everything(3, verbose=False)
        fits.append(Packs(keeps_state, **more))
        make_trainer(*callbacks).fit(fits[-1], DataLoader(data, 4))
    plain, watched = fits
    assert watched.losses == plain.losses
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    session = doctor.session
    assert session is not None
    assert not session.probes_off
    assert session.model_profile is not None, session.missing
    found = session.model_profile.cheaper
    assert (found is not None) == is_found
    if found is not None:
        assert (found.kind, found.function, found.shape, found.size, found.better) == (
            "packed", "nn.LSTM", (4, 6), 24, 1 + 2 + 3 + 4,
        )  # fmt: skip
        assert found.site.startswith("test_replay.py:")
        assert session.replay is not None
        assert [result.treatment for result in session.replay.results] == ["cheaper"]
