"""Every way of training that changes which hooks fire, each with a real Trainer."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lightning_perf import PerfDoctor, load
from lightning_perf.records import SESSION_FILE

from .conftest import Counted, Make, assert_adds_up, assert_nothing_left
from .models import BATCH_SIZE, N_FEATURES, FetchesItself, Manual, Stream, Tiny, loader, unsized_loader


def fitted(
    make_trainer: Make, model: Any, *callbacks: Any, train: Any = None, val: Any = None, **arguments: Any
) -> Any:
    """The session of one fit, after checking what must hold for all of them."""
    doctor = PerfDoctor()
    trainer = make_trainer(doctor, *callbacks, **arguments)
    profiler = trainer.profiler
    trainer.fit(model, train if train is not None else loader(), val)
    assert_nothing_left(trainer, profiler)
    session = doctor.session
    assert session is not None
    assert session.run.status == "finished"
    assert session.run.stage == "fit"
    assert_adds_up(session)
    return session


class NoLoss(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % 2 else loss


class StopsEarly(Tiny):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 5 else None


class TwoValidationLoaders(Tiny):
    def val_dataloader(self) -> Any:
        return [loader(3), loader(2)]


def test_session_counts_batches_and_optimizer_steps_when_accumulating(make_trainer: Make) -> None:
    session = fitted(make_trainer, Tiny(), accumulate_grad_batches=3)
    assert session.run.n_steps == 8
    assert session.run.n_optimizer_steps == 3
    assert {"forward", "backward", "optimizer", "data_wait", "transfer", "logging"} <= set(session.steady.phases)


@pytest.mark.parametrize(("n_optimizers", "is_raw"), [(1, False), (2, False), (1, True), (2, True)])
def test_session_has_all_phases_when_optimization_is_manual(
    make_trainer: Make, n_optimizers: int, is_raw: bool
) -> None:
    session = fitted(make_trainer, Manual(n_optimizers=n_optimizers, is_raw=is_raw))
    assert session.run.n_steps == 8
    assert session.run.n_optimizer_steps == (0 if is_raw else 8 * n_optimizers)
    assert session.steady.phases["backward"].total_s > 0
    assert session.steady.phases["optimizer"].total_s > 0


def test_session_counts_all_steps_when_training_step_returns_none(make_trainer: Make) -> None:
    assert fitted(make_trainer, NoLoss()).run.n_steps == 8


def test_session_leaves_out_the_step_when_on_train_batch_start_returns_stop(make_trainer: Make) -> None:
    session = fitted(make_trainer, StopsEarly(), max_epochs=2)
    assert session.run.n_steps == 10
    assert [epoch.n_steps for epoch in session.epochs] == [5, 5]


def test_session_keeps_validation_apart_when_it_runs_mid_epoch(make_trainer: Make) -> None:
    session = fitted(make_trainer, Tiny(), val=loader(3), val_check_interval=2)
    assert session.run.n_steps == 8
    assert session.steady.phases["validation"].total_s > 0
    assert (
        12 - 4 <= session.validation.n_steps + session.validation.n_warmup_steps <= 12
    )  # 4 rounds, first of each apart
    assert session.steady.phases["validation"].p50_s is None


def test_session_counts_every_loader_when_there_are_several_for_validation(make_trainer: Make) -> None:
    session = fitted(make_trainer, TwoValidationLoaders(), max_epochs=2)
    assert (
        10 - 2 <= session.validation.n_steps + session.validation.n_warmup_steps <= 10
    )  # 2 rounds, first of each apart


def test_sanity_check_is_startup_not_validation(make_trainer: Make) -> None:
    session = fitted(make_trainer, Tiny(), val=loader(3), num_sanity_val_steps=2)
    assert session.run.startup["sanity_validation"] > 0
    assert session.validation.n_steps + session.validation.n_warmup_steps == 3


def test_no_files_are_written_when_fast_dev_run(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor()
    trainer = make_trainer(doctor, fast_dev_run=True, logger=True)
    trainer.fit(Tiny(), loader(), loader(2))
    assert list(tmp_path.rglob("*")) == []
    assert doctor.session is not None
    assert doctor.session.run.n_steps == 1


def test_session_is_written_when_max_time_is_over_before_the_first_step(
    make_trainer: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = PerfDoctor()
    trainer = make_trainer(doctor, max_time=timedelta(0), max_epochs=-1)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader())
    assert_nothing_left(trainer, profiler)
    assert doctor.session is not None
    assert doctor.session.run.n_steps == 0
    assert doctor.session.steady is None
    assert "steady" in doctor.session.missing
    assert "max_time was already reached" in " ".join(capsys.readouterr().out.split())


def test_session_starts_at_the_step_resumed_when_resuming_mid_epoch(make_trainer: Make, tmp_path: Path) -> None:
    make_trainer(max_steps=3).fit(Tiny(), loader())
    trainer = make_trainer(
        ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=3, save_top_k=-1, filename="mid"),
        enable_checkpointing=True,
        max_steps=4,
    )
    trainer.fit(Tiny(), loader())
    doctor = PerfDoctor()
    counted = Counted()
    trainer = make_trainer(doctor, counted)
    profiler = trainer.profiler
    # The argument is new in Lightning 2.6, whose default refuses what the loops save of themselves.
    trusted = {"weights_only": False} if "weights_only" in signature(trainer.fit).parameters else {}
    trainer.fit(Tiny(), loader(), ckpt_path=str(tmp_path / "mid.ckpt"), **trusted)
    assert_nothing_left(trainer, profiler)
    session = doctor.session
    assert session is not None
    assert counted.n_steps in (5, 6)  # Lightning 2.4 trains with the batch again after which it saved
    assert session.run.n_steps == counted.n_steps
    assert session.run.n_optimizer_steps == counted.n_steps
    assert session.provenance.sample_shapes == (str(N_FEATURES),)
    assert session.telemetry.host.batch_bytes == BATCH_SIZE * N_FEATURES * 4
    assert_adds_up(session)


def test_accumulation_is_that_of_the_last_epoch_when_a_callback_schedules_it(make_trainer: Make) -> None:
    session = fitted(make_trainer, Tiny(), GradientAccumulationScheduler({0: 4, 1: 2}), max_epochs=2)
    assert session.settings.trainer.accumulate_grad_batches == 2


def test_second_fit_gives_an_empty_session_when_the_trainer_is_finished(make_trainer: Make) -> None:
    doctor = PerfDoctor()
    trainer = make_trainer(doctor)
    profiler = trainer.profiler
    model = Tiny()
    trainer.fit(model, loader())
    first = doctor.session
    trainer.fit(model, loader())
    assert_nothing_left(trainer, profiler)
    assert first is not None
    assert doctor.session is not None
    assert doctor.session.run.id != first.run.id
    assert doctor.session.run.n_steps == 0


def test_each_call_gives_a_session_when_one_callback_sees_several(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor(out_dir=tmp_path / "out")
    trainer = make_trainer(doctor)
    profiler = trainer.profiler
    model = Tiny()
    ids = []
    calls = [
        ("fit", lambda: trainer.fit(model, loader(), loader(4))),
        ("validate", lambda: trainer.validate(model, loader(4), verbose=False)),
        ("test", lambda: trainer.test(model, loader(5), verbose=False)),
        ("predict", lambda: trainer.predict(model, loader(6))),
    ]
    for stage, call in calls:
        call()
        session = doctor.session
        assert session is not None
        assert session.run.stage == stage
        assert session.run.status == "finished"
        assert_adds_up(session)
        assert_nothing_left(trainer, profiler)
        ids.append(session.run.id)
    assert len(set(ids)) == 4
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader(), loader(4))
    assert load(tmp_path / "out").run.id == doctor.session.run.id
    assert load(tmp_path / "out" / f"perf_session.{ids[0]}.json").run.id == ids[0]
    assert load(tmp_path / "out" / "perf_session_test.json").run.n_steps == 5


def test_last_batch_is_a_step_like_any_other_when_testing(make_trainer: Make) -> None:
    class SlowEnd(Tiny):
        def on_test_epoch_end(self) -> None:
            time.sleep(0.3)

    doctor = PerfDoctor()
    make_trainer(doctor).test(SlowEnd(), loader(8), verbose=False)
    session = doctor.session
    assert session is not None
    assert session.run.n_steps == 8
    assert session.steady.step_s.p99 < 0.25
    assert session.steady.phases["epoch_boundary"].total_s + session.steady.phases["callbacks"].total_s >= 0.3


def test_end_of_the_run_belongs_to_no_epoch_when_it_takes_long(make_trainer: Make) -> None:
    class SlowToTearDown(SingleDeviceStrategy):
        """As one that moves a large module from a device to the host."""

        def teardown(self) -> None:
            super().teardown()
            time.sleep(0.5)

    doctor = PerfDoctor()
    make_trainer(doctor, strategy=SlowToTearDown("cpu")).fit(Tiny(), loader(8))
    session = doctor.session
    assert session is not None
    assert session.steady.phases["epoch_boundary"].total_s < 0.5
    assert session.run.wall_s >= 0.5


def test_session_is_written_when_barebones(make_trainer: Make, tmp_path: Path) -> None:
    class Bare(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch)

    session = fitted(make_trainer, Bare(), barebones=True)
    assert session.run.n_steps == 8


def test_session_goes_to_perf_logs_when_there_is_no_logger(make_trainer: Make, tmp_path: Path) -> None:
    fitted(make_trainer, Tiny(), logger=False)
    written = list((tmp_path / "perf_logs").glob(f"*/{SESSION_FILE}"))
    assert len(written) == 1


def test_home_is_meant_when_out_dir_begins_with_its_sign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PerfDoctor(out_dir="~/runs").out_dir == tmp_path / "runs"


def test_session_goes_to_out_dir_when_it_is_given(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor(out_dir=tmp_path / "deep" / "there")
    make_trainer(doctor).fit(Tiny(), loader())
    assert load(tmp_path / "deep" / "there").run.id == doctor.session.run.id
    assert not (tmp_path / "perf_logs").exists()


@pytest.mark.parametrize("train", [unsized_loader, lambda: Stream(8)])
def test_session_counts_steps_when_the_loader_has_no_length(make_trainer: Make, train: Any) -> None:
    session = fitted(make_trainer, Tiny(), train=train(), max_epochs=2)
    assert session.run.n_steps == 16
    assert [epoch.n_steps for epoch in session.epochs] == [8, 8]


def test_session_takes_the_fetch_out_of_forward_when_the_step_fetches_itself(make_trainer: Make) -> None:
    session = fitted(make_trainer, FetchesItself(), max_epochs=2)
    assert session.run.n_steps == 16
    assert session.steady.phases["data_wait"].total_s > 0
    assert session.steady.samples_per_s is not None


def test_session_knows_samples_when_loaders_are_combined(make_trainer: Make) -> None:
    class Both(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch["a"]) + self.loss(batch["b"])

    session = fitted(make_trainer, Both(), train=CombinedLoader({"a": loader(4), "b": loader(6)}, "min_size"))
    assert session.run.n_steps == 4
    assert session.steady.samples_per_s > 0


def test_every_epoch_is_there_when_loaders_are_rebuilt_each_epoch(make_trainer: Make) -> None:
    class Rebuilds(Tiny):
        def train_dataloader(self) -> Any:
            return loader(6)

    doctor = PerfDoctor()
    make_trainer(doctor, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(Rebuilds())
    assert [epoch.n_steps for epoch in doctor.session.epochs] == [6, 6, 6]
    assert_adds_up(doctor.session)


def test_session_is_empty_when_no_batches_are_to_be_trained_on(make_trainer: Make) -> None:
    assert fitted(make_trainer, Tiny(), limit_train_batches=0).run.n_steps == 0


def test_session_ends_where_training_ended_when_early_stopping_stops_it(make_trainer: Make) -> None:
    stop = EarlyStopping("val_loss", patience=0, min_delta=1e9)
    session = fitted(make_trainer, Tiny(), stop, val=loader(2), max_epochs=5)
    assert len(session.epochs) == 2
    assert session.run.n_steps == 16


def test_session_ends_mid_epoch_when_max_steps_is_reached(make_trainer: Make) -> None:
    session = fitted(make_trainer, Tiny(), max_steps=11, max_epochs=-1)
    assert session.run.n_steps == 11
    assert [epoch.n_steps for epoch in session.epochs] == [8, 3]


def test_run_is_measured_when_data_come_from_a_datamodule(make_trainer: Make) -> None:
    class Data(LightningDataModule):
        def train_dataloader(self) -> Any:
            return loader(7)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return batch * 2

    doctor = PerfDoctor()
    make_trainer(doctor).fit(Tiny(), datamodule=Data())
    assert doctor.session.run.n_steps == 7
    assert_adds_up(doctor.session)


def test_each_callback_has_its_own_times_when_they_share_a_class(make_trainer: Make) -> None:
    class Counts(Callback):
        def __init__(self, key: str) -> None:
            self.key = key
            self.n = 0

        @property
        def state_key(self) -> str:
            return f"Counts{self.key}"

        def on_train_batch_end(self, *_: Any) -> None:
            self.n += 1

    counts = [Counts("a"), Counts("b")]
    session = fitted(make_trainer, Tiny(), *counts)
    assert [c.n for c in counts] == [8, 8]
    (named,) = [t for t in session.steady.named if t.name == "Counts"]
    assert 14 <= named.n_calls <= 16  # of two callbacks, since the end of the first step


def test_steps_are_counted_when_a_loader_yields_none(make_trainer: Make) -> None:
    class Holes(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return None if index == 3 else torch.ones(2, 4)

    holes = torch.utils.data.DataLoader(Holes(), batch_size=None)
    session = fitted(make_trainer, Tiny(), train=holes)
    assert session.run.n_steps == 7


def test_spans_are_left_when_a_step_swallows_an_optimizers_error(make_trainer: Make) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("no step today")

    class Swallows(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(self.loss(batch))
            with contextlib.suppress(RuntimeError):
                self.optimizers(use_pl_optimizer=False).step()
            time.sleep(0.002)

        def configure_optimizers(self) -> Any:
            return Broken(self.parameters(), lr=0.1)

    session = fitted(make_trainer, Swallows())
    phases = session.steady.phases
    assert phases["data_wait"].total_s > 0
    assert session.run.n_steps == 8
    assert phases["other"].p50_s > 0  # else all that followed would be inside the optimizer's span
    assert phases["transfer"].p50_s > 0


def test_anomaly_detection_is_known_when_torch_s_own_function_switched_it_on_in_a_hook(make_trainer: Make) -> None:
    class Hunts(Tiny):
        def on_train_start(self) -> None:
            torch.autograd.set_detect_anomaly(True)

    doctor = PerfDoctor(schedule=None, reports=[])
    make_trainer(doctor, max_epochs=2).fit(Hunts(), loader())
    assert doctor.session is not None
    assert doctor.session.settings.trainer.is_anomaly_detection_on is True
    assert not torch.is_anomaly_enabled()  # Lightning puts back what was before fit
