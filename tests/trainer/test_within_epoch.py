"""Diagnoses within an epoch, and what a run leaves that is killed, preempted or interrupted."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, Trainer
from typer.testing import CliRunner

from lightning_perf import PerfDoctor, diagnosis_schedule, live, load, run_reports
from lightning_perf.cli.app import app
from lightning_perf.records import SESSION_FILE, load_run
from tests.forkserver import Forkserver

from .conftest import Make, assert_adds_up, assert_nothing_left
from .models import Tiny, loader

OFTEN = {"FIRST_SLOW_STEPS": 5, "FIRST_SLOW_S": 0.0, "MAX_INTERVAL_S": 0.0, "COST_FACTOR": 0, "CHECK_S": 0.0}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diagnose after each step from the fifth one on."""
    for name, value in OFTEN.items():
        monkeypatch.setattr(diagnosis_schedule, name, value)


class Verdicts(Callback):
    """Notes at each step how many steps PerfDoctor's latest session has."""

    def __init__(self, doctor: PerfDoctor) -> None:
        self.doctor = doctor
        self.n_steps: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        session = self.doctor.session
        self.n_steps.append(0 if session is None else session.run.n_steps)


@pytest.mark.usefixtures("often")
def test_session_is_renewed_within_the_epoch_and_still_adds_up(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None)
    verdicts = Verdicts(doctor)
    trainer = make_trainer(doctor, verdicts, max_epochs=2, val_check_interval=4)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader(16), loader(2))
    assert_nothing_left(trainer, profiler)
    # No diagnosis ends a step that is sampled.
    assert {6, 8, 9, 10} <= set(verdicts.n_steps)
    assert verdicts.n_steps == sorted(verdicts.n_steps)
    assert_adds_up(doctor.session)
    assert doctor.session.run.n_steps == 32
    assert doctor.session.overhead.reporting_s > 0


@pytest.mark.usefixtures("often")
def test_no_line_is_printed_within_the_first_minute(make_trainer: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(PerfDoctor(schedule=None)).fit(Tiny(), loader(16))
    assert " step " not in capsys.readouterr().out.partition("16 steps · ")[0]


@pytest.mark.usefixtures("often")
def test_nothing_is_diagnosed_within_an_epoch_when_the_run_only_tries_a_batch(make_trainer: Make) -> None:
    doctor = PerfDoctor()
    verdicts = Verdicts(doctor)
    make_trainer(doctor, verdicts, fast_dev_run=9).fit(Tiny(), loader(16))
    assert set(verdicts.n_steps) == {0}


class Settings(Callback):
    """Notes at each step what treatments change."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        data: Any = trainer.train_dataloader
        self.seen.append((trainer.log_every_n_steps, data.num_workers))


@pytest.mark.usefixtures("often")
def test_treatments_are_applied_between_steps_unless_they_change_loaders(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_recommending", lambda session, spec: "PD999")
    doctor, settings = PerfDoctor(schedule=None, apply=["log-every-n=7", "loader-workers=1"]), Settings()
    trainer = make_trainer(doctor, settings, max_epochs=2)
    trainer.fit(Tiny(), loader(12))
    assert settings.seen[0] == (50, 0)
    assert settings.seen[11] == (7, 0)
    assert settings.seen[12:] == [(7, 1)] * 12
    assert trainer.log_every_n_steps == 50
    assert [(each.treatment, each.epoch) for each in doctor.session.applied] == [
        ("log-every-n=7", 0),
        ("loader-workers=1", 1),
    ]


@pytest.mark.usefixtures("often")
def test_probe_that_fails_within_an_epoch_leaves_the_training_alone(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reports.RunReports, "epoch", lambda *_: 1 / 0)
    doctor = PerfDoctor(schedule=None)
    trainer = make_trainer(doctor)
    trainer.fit(Tiny(), loader(16))
    assert trainer.global_step == 16
    assert "ZeroDivisionError" in doctor.session.probes_off[0].error


# -- runs that do not end by themselves -------------------------------------------------------------------------------

SCRIPT = f"""
import os, signal, sys, time, torch
import lightning.pytorch as pl
from lightning_perf import PerfDoctor, diagnosis_schedule
vars(diagnosis_schedule).update({OFTEN} | {{"COST_FACTOR": 2}})
sent, n_ranks = sys.argv[1], int(os.environ.get("WORLD_SIZE", "1"))
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000_000
    def __getitem__(self, index):
        time.sleep(0.1)  # much longer than a step on a loaded machine
        return torch.ones(4)
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        if batch_idx == 50 and self.global_rank == 0:
            os.kill(os.getpid(), getattr(signal, sent))
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)
class Hooks(pl.Callback):
    def on_exception(self, trainer, module, error):
        print("hook of the user:", type(error).__name__)
trainer = pl.Trainer(accelerator="cpu", devices=n_ranks, strategy="ddp" if n_ranks > 1 else "auto", max_steps=200_000,
                     logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                     callbacks=[PerfDoctor(out_dir="out", reports=["console", "json", "html"]), Hooks()])
trainer.fit(Model(), torch.utils.data.DataLoader(Samples(), batch_size=1))
"""


def left_by(forkserver: Forkserver, folder: Path, sent: str, n_ranks: int = 1) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return forkserver.run(script, sent, n_ranks=n_ranks)


def reported(folder: Path) -> str:
    """Return what ``lightning-perf report`` prints of a folder."""
    done = CliRunner().invoke(app, ["report", str(folder / "out")])
    assert done.exit_code == 0
    return done.output


def test_killed_run_leaves_a_diagnosis(forkserver: Forkserver, tmp_path: Path) -> None:
    assert left_by(forkserver, tmp_path, "SIGKILL").returncode == 9
    session = load(tmp_path / "out" / SESSION_FILE)
    assert session.run.status == "running"
    assert 20 < session.run.n_steps <= 50
    assert "PD101" in {finding.code for finding in session.findings}  # beside other programs PD106 may be first
    assert "PD101" in reported(tmp_path)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [SESSION_FILE]


@pytest.mark.parametrize(("sent", "error"), [("SIGTERM", "SIGTERMException"), ("SIGINT", "KeyboardInterrupt")])
def test_run_that_is_asked_to_end_is_interrupted_and_diagnosed(
    forkserver: Forkserver, tmp_path: Path, sent: str, error: str
) -> None:
    done = left_by(forkserver, tmp_path, sent)
    session = load(tmp_path / "out" / SESSION_FILE)
    assert (session.run.status, session.run.error) == ("interrupted", error)
    assert "PD101" in {finding.code for finding in session.findings}  # beside other programs PD106 may be first
    assert "interrupted" in done.stdout
    assert f"hook of the user: {error}" in done.stdout
    assert "PD101" in reported(tmp_path)
    # A scheduler kills soon after SIGTERM.
    assert (tmp_path / "out" / "perf_report.html").exists() == (sent == "SIGINT")


@pytest.mark.timeout(150)
def test_killed_first_rank_leaves_a_diagnosis(forkserver: Forkserver, tmp_path: Path) -> None:
    assert left_by(forkserver, tmp_path, "SIGKILL", n_ranks=2).returncode != 0
    assert "PD101" in reported(tmp_path)
    session = load_run(tmp_path / "out")
    assert "PD101" in {finding.code for finding in session.findings}
