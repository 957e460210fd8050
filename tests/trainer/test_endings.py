"""Runs that fail: the user gets the original error, the session records it, and everything is restored."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

from lightning_perf import PerfDoctor

from .conftest import Make, assert_adds_up, assert_nothing_left
from .models import Manual, Samples, Tiny, loader


class Oops(Exception):
    """The user's own error."""


class FailsInStep(Tiny):
    error: type[BaseException] = Oops

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 5:
            raise self.error("in the step")
        return super().training_step(batch, batch_idx)


class FailsInValidation(Tiny):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        raise Oops("in validation")


class FailsInOptimizer(Manual):
    def configure_optimizers(self) -> Any:
        class Broken(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                raise Oops("in the optimizer")

        return Broken(self.parameters(), lr=0.1)


class BrokenSamples(Samples):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9:
            raise Oops("in the dataset")
        return super().__getitem__(index)


class FailsIn(Callback):
    """Raises in one of its hooks."""

    def __init__(self, hook: str) -> None:
        self.hook = hook
        setattr(self, hook, self._fail)

    def _fail(self, *_: Any, **__: Any) -> None:
        raise Oops(f"in {self.hook}")


CASES: dict[str, tuple[Any, Any]] = {
    "training_step": (FailsInStep, None),
    "validation_step": (FailsInValidation, None),
    "optimizer": (FailsInOptimizer, None),
    "dataset": (Tiny, None),
    **{
        f"callback {hook}": (Tiny, hook)
        for hook in (
            "on_fit_start",
            "on_train_start",
            "on_train_batch_start",
            "on_before_backward",
            "on_train_batch_end",
            "on_validation_end",
            "on_train_epoch_end",
            "on_train_end",
        )
    },
}


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("case", list(CASES))
def test_session_is_failed_and_error_is_the_users_when_something_raises(
    make_trainer: Make, case: str, is_first: bool
) -> None:
    make_model, hook = CASES[case]
    doctor = PerfDoctor()
    others = [FailsIn(hook)] if hook else []
    trainer = make_trainer(*([*others, doctor] if is_first else [doctor, *others]), num_sanity_val_steps=0)
    profiler = trainer.profiler
    train = DataLoader(BrokenSamples(16), batch_size=2) if case == "dataset" else loader()
    model = make_model()
    with pytest.raises(Oops):
        trainer.fit(model, train, loader(2))
    assert_nothing_left(trainer, profiler)
    assert "backward" not in vars(trainer.strategy)
    session = doctor.session
    assert session is not None
    assert session.run.status == "failed"
    assert session.run.error == "Oops"
    if case not in ("callback on_train_batch_end", "callback on_train_batch_start"):
        assert_adds_up(session)
    assert len(list(_sessions(trainer))) == 1


def _sessions(trainer: Any) -> Any:
    from pathlib import Path

    return Path(trainer.default_root_dir).rglob("perf_session.json")


def test_incomplete_step_counts_as_none_when_the_step_raises(make_trainer: Make) -> None:
    doctor = PerfDoctor()
    with pytest.raises(Oops):
        make_trainer(doctor).fit(FailsInStep(), loader())
    assert doctor.session.run.n_steps == 5
    assert sum(epoch.n_steps for epoch in doctor.session.epochs) == 5


def test_session_is_interrupted_when_the_user_presses_ctrl_c(make_trainer: Make) -> None:
    class Interrupted(FailsInStep):
        error = KeyboardInterrupt

    doctor = PerfDoctor()
    trainer = make_trainer(doctor)
    profiler = trainer.profiler
    with pytest.raises(SystemExit):
        trainer.fit(Interrupted(), loader())
    assert_nothing_left(trainer, profiler)
    assert doctor.session.run.status == "interrupted"
    assert doctor.session.run.error == "KeyboardInterrupt"
    assert doctor.session.run.n_steps == 5


def test_session_is_interrupted_when_optuna_prunes_the_trial(make_trainer: Make, capsys: Any) -> None:
    class Pruned(FailsInStep):
        error = type("Mine", (type("TrialPruned", (Exception,), {"__module__": "optuna.exceptions"}),), {})

    doctor = PerfDoctor()
    with pytest.raises(Pruned.error):
        make_trainer(doctor).fit(Pruned(), loader())
    assert doctor.session.run.status == "interrupted"
    assert doctor.session.run.n_steps == 5


def test_trainer_can_train_again_when_the_last_run_failed(make_trainer: Make) -> None:
    doctor = PerfDoctor()
    trainer = make_trainer(doctor)
    profiler = trainer.profiler
    with pytest.raises(Oops):
        trainer.fit(FailsInStep(), loader())
    trainer = make_trainer(doctor)
    trainer.fit(Tiny(), loader())
    assert doctor.session.run.status == "finished"
    assert_nothing_left(trainer, trainer.profiler)
    assert profiler is not None


@pytest.mark.parametrize(
    ("stage", "limits"),
    [("fit", {"max_steps": 0}), ("fit", {"limit_train_batches": 0}), ("validate", {"limit_val_batches": 0})],
)
def test_run_without_steps_says_so_in_one_statement(
    make_trainer: Make, capsys: pytest.CaptureFixture[str], stage: str, limits: dict[str, Any]
) -> None:
    getattr(make_trainer(PerfDoctor(), **limits), stage)(Tiny(), loader())
    [shown] = re.findall(r"PerfDoctor  no (step|batch) was run: ", capsys.readouterr().out)
    assert shown == ("step" if stage == "fit" else "batch")


def test_search_of_a_learning_rate_says_nothing(make_trainer: Make, capsys: pytest.CaptureFixture[str]) -> None:
    doctor, model = PerfDoctor(), Tiny()
    model.lr = 0.1
    Tuner(make_trainer(doctor)).lr_find(model, loader(), num_training=4)
    assert doctor.session is not None
    assert "PerfDoctor" not in capsys.readouterr().out


def test_warning_is_logged_when_a_trainer_inside_another_has_the_same_perf_doctor(
    make_trainer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    doctor = PerfDoctor(reports=())

    class Validates(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            make_trainer(doctor).validate(Tiny(), loader())

    trainer = make_trainer(doctor, Validates())
    profiler = trainer.profiler
    with caplog.at_level(logging.WARNING):
        trainer.fit(Tiny(), loader())
        make_trainer(doctor).fit(Tiny(), loader())  # the first has ended
    assert_nothing_left(trainer, profiler)
    [message] = [r.getMessage() for r in caplog.records if r.name == "lightning_perf"]
    assert "stops measuring a Trainer that still runs" in message


def test_second_perf_doctor_is_inactive_when_there_are_two(
    make_trainer: Make, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = PerfDoctor(), PerfDoctor()
    trainer = make_trainer(first, second, max_epochs=2)
    profiler = trainer.profiler
    with caplog.at_level(logging.WARNING):
        trainer.fit(Tiny(), loader())
    assert_nothing_left(trainer, profiler)
    assert second.session is None
    assert first.session.run.n_steps == 16
    assert [r.getMessage() for r in caplog.records if r.name == "lightning_perf"] == [
        "This Trainer has more than one PerfDoctor: the first one measures, the others do nothing."
    ]
    assert capsys.readouterr().out.count("16 steps · ") == 1
