"""``lightning_perf.trial``: commands, functions and factories, and that nothing is left behind in the process."""

from __future__ import annotations

import importlib
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import lightning_perf
from lightning_perf import PerfDoctor
from lightning_perf.errors import ConfigError, TrialError
from lightning_perf.history.store import VARIABLE
from lightning_perf.trials import sizes
from lightning_perf.trials import trial as trials
from lightning_perf.trials.in_process import InProcess
from lightning_perf.trials.job import OUTPUTS, Job
from lightning_perf.trials.runner import Ended
from tests.trials.test_trial import Machine


class Model(LightningModule):
    """Records the settings it was trained with; ``acts`` is called in each step."""

    seen: list[Any] = []
    acts: Callable[[Model], None] = staticmethod(lambda model: None)

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        Model.seen.append(self.trainer.log_every_n_steps)
        Model.acts(self)
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def make_trainer(**arguments: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, max_epochs=500, **arguments
    )


def make_data() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4)


def train() -> None:
    make_trainer().fit(Model(), make_data())
    raise AssertionError("a measured run ends inside fit")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(Model, "seen", [])
    yield
    assert not {path.name for path in Path().iterdir()} - {"perf_logs"}  # no logs or checkpoints of the user's


def job(tmp_path: Path, *specs: str) -> Job:
    folder = str(tmp_path / "job")
    return Job(mode="trial", folder=folder, specs=specs, with_doctor=False, steps=8, block_steps=2, seed=1)


def run(tmp_path: Path, *specs: str, function: Callable[[], Any] = train, **arguments: Any) -> Ended:
    return InProcess(function)(("train()",), job(tmp_path, *specs), **arguments)


def process_state() -> tuple[Any, ...]:
    inside = importlib.import_module("lightning_perf.trials.inside")
    return (
        *(Trainer.__init__, Trainer.fit, signal.getsignal(signal.SIGINT), logging.root.manager.disable),
        *(sys.stdout, sys.stderr, random.getstate(), torch.random.get_rng_state().tolist(), inside.keeps_process),
    )


# -- a function in this process ---------------------------------------------------------------


def test_run_ends_inside_fit_after_its_steps_and_leaves_nothing_behind(tmp_path: Path) -> None:
    before = process_state()
    ended = run(tmp_path)
    assert process_state() == before
    assert ended.failure == ""
    assert ended.result is not None
    assert (ended.result.n_steps, ended.result.peak_host_bytes) == (8, None)
    assert len(Model.seen) == 8
    assert len(ended.result.losses) == 8


def test_runs_have_equal_losses_whatever_was_drawn_before(tmp_path: Path) -> None:
    first = run(tmp_path)
    torch.rand(3)
    second = run(tmp_path)
    assert first.result is not None
    assert second.result is not None
    assert first.result.losses == second.result.losses


def test_treatment_is_applied_to_this_run_only(tmp_path: Path) -> None:
    run(tmp_path, "log-every-n=7", "loader-workers=0")
    assert set(Model.seen) == {7}
    Model.seen.clear()
    run(tmp_path)
    assert set(Model.seen) == {50}


@pytest.mark.parametrize("where", ["step", "function"])
def test_error_is_the_reason_of_the_run_and_restores_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Model, "acts", staticmethod(fail))
    before = process_state()
    ended = run(tmp_path, function=train if where == "step" else fail)
    assert ended.failure == "RuntimeError: no such kernel"
    assert "Traceback" in (tmp_path / "job" / "log.txt").read_text()
    assert process_state() == before


def test_function_that_exits_is_a_failed_run(tmp_path: Path) -> None:
    assert run(tmp_path, function=lambda: sys.exit(2)).failure == "SystemExit: 2"  # as argparse does in a notebook


def test_function_that_catches_everything_is_not_trained_on(tmp_path: Path) -> None:
    def stubborn() -> None:
        for _ in range(2):
            try:
                train()
            except BaseException:  # noqa: BLE001
                continue

    assert run(tmp_path, function=stubborn).failure == ""
    assert len(Model.seen) == 8


def test_ctrl_c_ends_the_run_and_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "acts", staticmethod(lambda model: os.kill(os.getpid(), signal.SIGINT)))
    before = process_state()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert process_state() == before  # Lightning ignores further signals, because it expects the process to end


def test_callbacks_and_loggers_of_the_notebook_are_as_before(tmp_path: Path) -> None:
    objects: Any = (
        CSVLogger("logs"),
        ModelCheckpoint("kept", monitor="loss", every_n_train_steps=3),
        ModelCheckpoint(every_n_train_steps=3),
        PerfDoctor(apply=["log-every-n"]),
    )
    before = [
        {name: dict(value) if type(value) is dict else value for name, value in vars(one).items()} for one in objects
    ]
    logger, *callbacks = objects

    def shared() -> None:
        make_trainer(logger=logger, callbacks=callbacks).fit(Model(), make_data())

    with_doctor = msgspec.structs.replace(job(tmp_path), with_doctor=True)
    assert InProcess(shared)(("shared()",), with_doctor).failure == ""
    assert [vars(one) for one in objects] == before


def test_trainer_within_a_training_writes_to_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(model: Model) -> None:
        monkeypatch.setattr(Model, "acts", staticmethod(lambda model: None))
        inner = Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[ModelCheckpoint("teacher")],
        )  # fmt: skip
        inner.fit(Model(), make_data())
        inner.save_checkpoint("teacher.ckpt")

    monkeypatch.setattr(Model, "acts", staticmethod(act))
    ended = run(tmp_path)
    assert ended.failure == ""
    assert len(list((tmp_path / "job" / OUTPUTS / "inner").rglob("*.ckpt"))) == 2


def test_trainer_built_before_the_run_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(logger=False, enable_checkpointing=False)
    ended = run(tmp_path, function=lambda: trainer.fit(Model(), make_data()))
    assert ended.failure == "its Trainer was built before the run; build a new one for each run"
    assert Model.seen == []


def test_function_without_a_training_says_how_far_it_came(tmp_path: Path) -> None:
    assert "never built a Trainer" in run(tmp_path, function=lambda: None).failure


def test_several_devices_and_variables_of_the_environment_need_a_command(tmp_path: Path) -> None:
    ended = run(tmp_path, function=lambda: make_trainer(devices=2, strategy="ddp_notebook").fit(Model(), make_data()))
    assert "on one device only; measure a command" in ended.failure
    ended = run(tmp_path, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert ended.failure.startswith("PYTORCH_CUDA_ALLOC_CONF must be set before a process starts")
    assert Model.seen == []


# -- trial() ------------------------------------------------------------


def test_factories_are_diagnosed_measured_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trials, "_PILOT_S", 0.5)
    monkeypatch.setattr(sizes, "TARGET_S", 0.05)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "history.db"))
    before = process_state()
    trial = lightning_perf.trial(
        treatments=["log-every-n=7"],
        make_trainer=make_trainer,
        make_module=Model,
        make_data=lambda: (make_data(), make_data()),
        repeats=1,
        out_dir=tmp_path / "out",
        progress=False,
    )
    assert process_state() == before
    assert os.environ[VARIABLE] == str(tmp_path / "history.db")
    assert not (tmp_path / "history.db").exists()
    assert trial.status == "finished"
    assert [arm.id for arm in trial.arms] == ["baseline", "baseline-again", "log-every-n=7"]
    assert all(run.status == "ok" for run in trial.runs)
    assert lightning_perf.load(tmp_path / "out").trials == (trial,)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["python train.py --lr '1 2'", ["python", Path("train.py"), "--lr", "1 2"]])
def test_command_runs_what_the_command_line_runs(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine()
    monkeypatch.setattr(trials, "run_supervised", machine)
    names = "loader-workers=4, log-every-n=8,loader-workers=4,"
    trial = lightning_perf.trial(command, names, out_dir=tmp_path / "out", seed=3)
    assert trial.command == ("python", "train.py", "--lr", "1 2")
    assert trial.best == "loader-workers=4"
    assert {job.seed for job in machine.made} == {3}
    assert "To try: loader-workers=4, log-every-n=8" in capsys.readouterr().err


def test_folder_is_below_perf_logs_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "run_supervised", Machine())
    lightning_perf.trial("python train.py", ["log-every-n=8"], repeats=1, progress=False)
    (folder,) = Path("perf_logs").iterdir()
    assert (folder / "trial.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expects a command, a function, or make_trainer and make_module"),
        ({"make_trainer": make_trainer}, "expects a command, a function, or make_trainer and make_module"),
        ({"command": train, "make_data": make_data}, "and only one of these"),
        ({"command": Path("train.py")}, "expects a command, a function"),
        ({"command": train, "time_limit_s": 5.0}, "apply to commands only"),
        ({"command": train, "treatments": ["teleport"]}, "'teleport' is not a treatment"),
        ({"command": train, "treatments": 3}, "treatments=3: expected treatments, e.g."),
        ({"command": train, "repeats": -1}, "repeats=-1: expected a whole number of at least 1"),
        ({"command": train, "steps": 0}, "steps=0: expected a whole number of at least 1 or None"),
        ({"command": train, "seed": 1.5}, "seed=1.5: expected a whole number"),
        ({"command": train, "semantics": "no"}, "semantics='no': expected True or False"),
        ({"command": "true", "time_limit_s": float("nan")}, "time_limit_s=nan: expected seconds, at least 1"),
        ({"command": "true", "memory_limit_bytes": "8G"}, "memory_limit_bytes='8G': expected a whole number of"),
    ],
)
def test_wrong_arguments_are_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lightning_perf.trial(**arguments)


def test_function_that_fails_is_an_error_with_its_reason(tmp_path: Path) -> None:
    def fails() -> None:
        raise ValueError("no data")

    with pytest.raises(TrialError, match=r"could not be measured \(fails\(\)\): ValueError: no data"):
        lightning_perf.trial(fails, ["log-every-n=7"], out_dir=tmp_path / "out", progress=False)
