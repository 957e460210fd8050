"""Output folders of a measured training."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from lightning.pytorch import Trainer

from lightning_perf import PerfDoctor, seams
from lightning_perf.trials.job import DOCTOR_FOLDER, OUTPUTS
from lightning_perf.trials.outputs import Outputs


@pytest.mark.parametrize("out_dir", [None, "of the user"])
def test_the_user_s_own_perf_doctor_writes_to_the_folder_of_the_trial(tmp_path: Path, out_dir: str | None) -> None:
    doctor = PerfDoctor(out_dir=out_dir)  # also a callback that the module adds, unknown before `setup`
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[doctor])
    outputs = Outputs(tmp_path / OUTPUTS, "lightning.pytorch")
    for _ in range(2):
        outputs.redirect(trainer)
        assert doctor.out_dir == tmp_path / DOCTOR_FOLDER


class Logger:
    """Base class of loggers in the fake Lightning."""


class CSVLogger(Logger):
    __module__ = "lightning.pytorch.loggers.stand_in"

    def __init__(self, save_dir: str) -> None:
        self._save_dir = self._root_dir = save_dir
        self._experiment = None


class ServiceLogger(Logger):
    @property
    def experiment(self) -> Any:
        raise AssertionError("a run of the service was begun")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> str:
    names = {name: ModuleType(name) for name in ("stand_in", "stand_in.loggers", "stand_in.loggers.logger")}
    names["stand_in.loggers"].__dict__.update(CSVLogger=CSVLogger, ServiceLogger=ServiceLogger, Logger=Logger)
    names["stand_in.loggers.logger"].__dict__.update(Logger=Logger)
    for name, module in names.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(CSVLogger, "__init__", CSVLogger.__init__)  # restored after the test
    monkeypatch.setattr(ServiceLogger, "experiment", ServiceLogger.experiment)
    return "stand_in"


def test_loggers_keep_to_the_folder_before_there_is_a_trainer(package: str, tmp_path: Path) -> None:
    seams.redirect_loggers(str(tmp_path), package)
    logger = CSVLogger("mine")
    assert (logger._save_dir, logger._root_dir) == (str(tmp_path), str(tmp_path))


def test_run_of_a_hosted_logger_is_fake_and_accepts_every_call(package: str, tmp_path: Path) -> None:
    seams.redirect_loggers(str(tmp_path), package)
    run = ServiceLogger().experiment
    run.config.update({"lr": 0.1})
    run.summary["best"] = 1
    run.name = "mine"
    with run.watch(None) as watched:
        assert list(watched["anything"]) == []
    assert f"{run.url}" == ""
    assert os.path.join("kept", run.id) == "kept/"
    assert not run
    assert type(pickle.loads(pickle.dumps(run))) is type(run)
