"""Other users of the Trainer or its loggers: copies, other threads, trainings inside a training."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.loggers import CSVLogger

from lightning_perf import PerfDoctor
from lightning_perf.run_reports import RunReports

from .conftest import Counted, Make, assert_adds_up, assert_nothing_left
from .models import Tiny, loader


class Copies(Callback):
    """Copies the Trainer's parts in the middle of a step."""

    def __init__(self) -> None:
        self.profilers: list[Any] = []

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.profilers.append(pickle.loads(pickle.dumps(trainer.profiler)))
        self.profilers.append(copy.deepcopy(trainer.profiler))


def test_profiler_copies_as_the_users_own_when_copied_during_a_run(make_trainer: Make) -> None:
    copies, doctor = Copies(), PerfDoctor()
    trainer = make_trainer(doctor, copies)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader(3))
    assert {type(one) for one in copies.profilers} == {type(profiler)}
    assert doctor.session is not None
    assert doctor.session.probes_off == ()


class TunableTiny(Tiny):
    """A model whose learning rate can be tuned."""

    def __init__(self) -> None:
        super().__init__()
        self.learning_rate = 0.01

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def test_steps_of_a_finder_are_none_of_the_run_when_a_callback_trains(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None)
    finder = LearningRateFinder(num_training_steps=5)
    counted = Counted()
    trainer = make_trainer(doctor, counted, finder, enable_checkpointing=True)
    profiler = trainer.profiler
    trainer.fit(TunableTiny(), loader(8))
    assert_nothing_left(trainer, profiler)
    session = doctor.session
    assert session is not None
    assert session.probes_off == ()
    assert counted.n_steps in (3, 8)  # Lightning 2.4 takes what the finder trained with for this epoch's first batches
    assert session.run.n_steps == counted.n_steps
    assert_adds_up(session)


class LogsFromAThread(Callback):
    """A thread that logs by itself while the loop runs."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        def log() -> None:
            while not self.is_over.is_set():
                try:
                    trainer.logger.log_metrics({"beside": 1.0}, step=0)
                except BaseException as error:  # noqa: BLE001 - the test asserts that there is none
                    self.errors.append(error)
                time.sleep(0.0005)

        self.thread = threading.Thread(target=log)
        self.thread.start()

    def on_train_end(self, *_: Any) -> None:
        self.is_over.set()
        self.thread.join()


def test_time_is_kept_for_the_loop_alone_when_another_thread_logs(make_trainer: Make, tmp_path: Any) -> None:
    doctor, logs = PerfDoctor(schedule=None), LogsFromAThread()
    trainer = make_trainer(doctor, logs, logger=CSVLogger(tmp_path))
    trainer.fit(Tiny(), loader(30))
    session = doctor.session
    assert session is not None
    assert logs.errors == []
    assert session.probes_off == ()
    assert_adds_up(session)


class SlowAtEpochEnd(Callback):
    """Takes its time between epochs."""

    def on_train_epoch_end(self, *_: Any) -> None:
        time.sleep(0.1)


@pytest.mark.parametrize("is_first", [True, False])
def test_time_between_epochs_is_in_no_step_at_any_callback_position(make_trainer: Make, is_first: bool) -> None:
    doctor = PerfDoctor(schedule=None)
    callbacks = [SlowAtEpochEnd(), doctor] if is_first else [doctor, SlowAtEpochEnd()]
    trainer = make_trainer(*callbacks, max_epochs=3)
    trainer.fit(Tiny(), loader(8))
    session = doctor.session
    assert session is not None
    assert session.steady is not None
    assert session.steady.phases["callbacks"].total_s >= 0.2
    assert session.steady.outliers is None or session.steady.outliers.excess_by_phase_s.get("callbacks", 0) < 0.1


def test_windows_open_in_other_stages_when_asked(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=(2, 1, 2), profiler={"stages": ["validate"]})
    make_trainer(doctor).validate(Tiny(), loader(10), verbose=False)
    session = doctor.session
    assert session is not None
    assert [window.status for window in session.windows] == ["recorded"]


def test_reports_between_epochs_keep_to_their_share_when_epochs_are_short(make_trainer: Make, monkeypatch: Any) -> None:
    doctor = PerfDoctor(schedule=None)
    reports: list[int] = []

    def slow_report(self: Any, session: Any, *_: Any) -> None:
        reports.append(session.epochs[-1].index)
        time.sleep(0.3)

    monkeypatch.setattr(RunReports, "epoch", slow_report)
    make_trainer(doctor, max_epochs=6).fit(Tiny(), loader(3))
    assert reports == [0]
