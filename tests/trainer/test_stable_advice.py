"""Recommendations stay the same from epoch to epoch unless the evidence changes; checkpoints are recognized."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_perf import PerfDoctor, seams
from lightning_perf.records import Finding, Gain, Session
from lightning_perf.rules.findings import fix

from .conftest import Make
from .models import Tiny, loader


def test_recommended_value_stays_over_epochs_when_the_rules_alternate(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = itertools.cycle((1, 2))

    def alternating(session: Session, *_: object) -> Session:
        n = next(values)
        finding = Finding(
            code="PD101", name="starved-by-loader", category="data", severity="high", summary="Waiting.", evidence=(),
            prescriptions=(fix(f"set num_workers={n}", "one line", loader_args={"num_workers": n}),),
            gain=Gain(low=1.0, high=1.0 + n, basis=""),
        )  # fmt: skip
        return msgspec.structs.replace(session, findings=(finding,))

    monkeypatch.setattr("lightning_perf.run.diagnose", alternating)
    monkeypatch.setattr("lightning_perf.run_reports.RunReports.can_afford_epoch", lambda *_: True)
    said: list[int] = []
    monkeypatch.setattr(
        "lightning_perf.run_reports.RunReports.epoch",
        lambda _, session, *__: said.append(session.findings[0].prescriptions[0].loader_args["num_workers"]),
    )
    doctor = PerfDoctor(schedule=None, out_dir=tmp_path)
    make_trainer(doctor, max_epochs=4).fit(Tiny(), loader())
    assert doctor.session is not None
    said.append(doctor.session.findings[0].prescriptions[0].loader_args["num_workers"])
    assert len(said) >= 3
    assert set(said) == {1}


def test_last_checkpoint_is_the_newest_file_when_several_were_written(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(PerfDoctor(schedule=None, reports=()))
    assert seams.last_checkpoint(trainer) is None
    old, new = ModelCheckpoint(), ModelCheckpoint()
    old.best_model_path, new.last_model_path = str(tmp_path / "old.ckpt"), str(tmp_path / "new.ckpt")
    new.best_model_path = str(tmp_path / "deleted.ckpt")
    for i, name in enumerate(("old", "new")):
        (tmp_path / f"{name}.ckpt").touch()
        os.utime(tmp_path / f"{name}.ckpt", (1e9 + i, 1e9 + i))
    trainer.callbacks += [old, new]
    assert seams.last_checkpoint(trainer) == str(tmp_path / "new.ckpt")
