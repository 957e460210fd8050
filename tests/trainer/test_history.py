"""Runs of a real Trainer in the history."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor
from lightning_perf.history import run_history
from lightning_perf.history.slower import Slower
from lightning_perf.history.store import VARIABLE, History
from lightning_perf.records import Session

from .conftest import Make
from .models import Samples, Tiny, loader


def trained(make_trainer: Make, *, n_batches: int = 60, **arguments: object) -> Session:
    doctor = PerfDoctor(schedule=None, probe_data=False)
    make_trainer(doctor, max_epochs=2, **arguments).fit(Tiny(), loader(n_batches))
    assert doctor.session.probes_off == ()
    return doctor.session


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare after 20 steps instead of 200, and call any run slower than the ones before it."""
    monkeypatch.setattr(run_history, "MIN_STEPS", 20)
    monkeypatch.setattr(run_history, "slower_times", lambda *_: [Slower("step", 1.18, 1.0)])


@pytest.mark.usefixtures("soon")
def test_a_slower_run_says_so_once_and_shows_earlier_runs(
    make_trainer: Make, history_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(3):
        session = trained(make_trainer)
        assert (session.earlier is None) == (n == 0)
    assert "slower than your last" not in capsys.readouterr().out
    session = trained(make_trainer, log_every_n_steps=7)
    assert capsys.readouterr().out.count("PerfDoctor  18 % slower than your last 3 runs") == 1
    assert session.earlier is not None
    assert session.earlier.news.startswith("18 % slower than your last 3 runs")
    assert [each.name for each in session.earlier.runs[-1].changes] == ["log_every_n_steps"]
    rows = History(history_file).rows()
    assert rows[0].id == session.run.id
    assert len({row.key for row in rows}) == 1
    assert all(row.status == "finished" and row.model == "Tiny" for row in rows)


def test_a_run_that_fails_is_recorded(make_trainer: Make, history_file: Path) -> None:
    class Fails(Tiny):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if self.global_step == 40:
                raise ValueError("secret")
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match="secret"):
        make_trainer(PerfDoctor(schedule=None)).fit(Fails(), DataLoader(Samples(120), batch_size=2))
    [row] = History(history_file).rows()
    assert (row.status, row.model) == ("failed", "Fails")
    assert b"secret" not in msgspec.json.encode(History(history_file).find(row.id))


@pytest.mark.parametrize("is_off", [True, False])
def test_nothing_is_written_when_switched_off_or_in_a_trial_run_of_few_batches(
    is_off: bool, make_trainer: Make, history_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_off:
        monkeypatch.setenv(VARIABLE, "off")
    arguments = {} if is_off else {"fast_dev_run": 40}
    session = trained(make_trainer, **arguments)
    assert session.earlier is None
    assert not history_file.exists()


def test_a_history_that_cannot_be_written_changes_nothing(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "history.db"))
    assert trained(make_trainer).run.n_steps == 120


@pytest.mark.parametrize("has_history", [True, False])
def test_machine_is_timed_for_the_history_only(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, has_history: bool
) -> None:
    if not has_history:
        monkeypatch.setenv("LIGHTNING_PERF_HISTORY", "off")
    steady = trained(make_trainer, n_batches=200).steady
    assert steady is not None
    assert (steady.fixed_python_s is not None and 1e-6 < steady.fixed_python_s < 1.0) == has_history
