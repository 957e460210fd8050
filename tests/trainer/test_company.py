"""PerfDoctor beside the user's own profilers, loggers, bars and copies."""

from __future__ import annotations

import copy
import csv
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from lightning_perf import PerfDoctor, hooks

from .conftest import Make, assert_adds_up, assert_nothing_left
from .models import Tiny, loader

# -- profilers ------------------------------------------------------------


class Notes(Profiler):
    """A user's profiler with a ``profile`` of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.yielded = object()

    def start(self, action_name: str) -> None:
        self.seen.append(action_name)

    def stop(self, action_name: str) -> None:
        self.seen.append("/" + action_name)

    @contextmanager
    def profile(self, action_name: str) -> Iterator[Any]:
        self.seen.append("with " + action_name)
        yield self.yielded
        self.seen.append("/with " + action_name)


def actions(make_trainer: Make, *callbacks: Any) -> list[str]:
    notes = Notes()
    trainer = make_trainer(*callbacks, profiler=notes)
    trainer.fit(Tiny(), loader(3), loader(2))
    assert_nothing_left(trainer, notes)
    return [seen for seen in notes.seen if "PerfDoctor" not in seen]


def test_users_profiler_sees_every_action_when_it_overrides_profile(make_trainer: Make) -> None:
    assert actions(make_trainer, PerfDoctor(schedule=None)) == actions(make_trainer)


@pytest.mark.parametrize("make_profiler", [SimpleProfiler, AdvancedProfiler, PassThroughProfiler])
def test_users_profiler_works_when_measured(make_trainer: Make, make_profiler: Any, tmp_path: Path) -> None:
    kind = make_profiler
    profiler = kind() if kind is PassThroughProfiler else kind(dirpath=tmp_path, filename="report")
    doctor = PerfDoctor(schedule=None)
    trainer = make_trainer(doctor, profiler=profiler)
    trainer.fit(Tiny(), loader())
    assert_nothing_left(trainer, profiler)
    assert_adds_up(doctor.session)
    assert doctor.session.steady.phases["data_wait"].total_s > 0
    if kind is not PassThroughProfiler:
        assert "run_training_batch" in (tmp_path / "fit-report.txt").read_text()


def test_users_pytorch_profiler_works_when_measured(make_trainer: Make, tmp_path: Path) -> None:
    profiler = PyTorchProfiler(dirpath=tmp_path, filename="report", export_to_chrome=False)
    doctor = PerfDoctor()
    trainer = make_trainer(doctor, profiler=profiler)
    trainer.fit(Tiny(), loader(12))
    assert trainer.profiler is profiler
    assert_adds_up(doctor.session)
    assert "aten::" in (tmp_path / "fit-report.txt").read_text()


def test_users_action_is_not_taken_for_a_fetch_when_it_ends_in_next(make_trainer: Make) -> None:
    class Announces(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.trainer.profiler.profile("[Mine].token_next"):
                return super().training_step(batch, batch_idx)

    doctor = PerfDoctor(schedule=None)
    make_trainer(doctor).fit(Announces(), loader())
    assert_adds_up(doctor.session)
    assert doctor.session.steady.phases["forward"].p50_s > doctor.session.steady.phases["data_wait"].p50_s / 10


# -- loggers ------------------------------------------------------------


class Likes(Logger):
    """Takes figures like one of the hosted loggers: no folder, any keys."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "hosted"

    @property
    def version(self) -> str:
        return "run"

    @property
    def experiment(self) -> Any:
        return self

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Logs nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))


@pytest.fixture
def all_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch is reported, however long the machine took for the reports before."""
    monkeypatch.setattr(hooks, "_REPORTING_ALLOWED_S", float("inf"))


@pytest.mark.usefixtures("all_reports")
def test_figures_ride_on_rows_that_are_logged_anyway_when_the_logger_is_hosted(make_trainer: Make) -> None:
    def rows(*callbacks: Any) -> list[tuple[int | None, dict[str, float]]]:
        logger = Likes()
        trainer = make_trainer(*callbacks, logger=logger, log_every_n_steps=2, max_epochs=3)
        trainer.fit(Tiny(), loader(), loader(2))
        return logger.rows

    with_doctor, without = rows(PerfDoctor()), rows()
    carried = [sorted(k for k in row if k.startswith("perf/")) for _, row in with_doctor]
    assert sum(bool(keys) for keys in carried) == 3
    assert all("perf/step_ms/p50" in keys for keys in carried if keys)
    assert all(isinstance(v, float) for _, row in with_doctor for k, v in row.items() if k.startswith("perf/"))
    plain = [(step, sorted(k for k in row if not k.startswith("perf/"))) for step, row in with_doctor]
    steps_and_keys = [(step, sorted(row)) for step, row in without]
    # After the last epoch nothing more is logged, unless by Lightning: one row of ours may follow.
    assert plain[: len(steps_and_keys)] == steps_and_keys
    assert len(plain) <= len(steps_and_keys) + 1


@pytest.mark.usefixtures("all_reports")
def test_csv_logger_gets_the_figures(make_trainer: Make, tmp_path: Path) -> None:
    doctor = PerfDoctor()
    trainer = make_trainer(doctor, logger=CSVLogger(tmp_path), log_every_n_steps=2, max_epochs=2)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader())
    assert_nothing_left(trainer, profiler)
    folder = Path(trainer.logger.log_dir)
    assert (folder / "perf_session.json").exists()
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    filled = [row for row in rows if row["perf/step_ms/p50"]]
    assert len(filled) == 2
    assert all(float(row["perf/step_ms/p50"]) > 0 for row in filled)
    assert [row for row in rows if row["loss"]] != []


@pytest.mark.usefixtures("all_reports")
def test_tensorboard_gets_scalars_and_text(make_trainer: Make, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = make_trainer(PerfDoctor(), logger=TensorBoardLogger(tmp_path), max_epochs=2)
    trainer.fit(Tiny(), loader())
    events = EventAccumulator(trainer.logger.log_dir)
    events.Reload()
    assert len(events.Scalars("perf/step_ms/p50")) == 2
    assert any(tag.startswith("perf/share/") for tag in events.Tags()["scalars"])
    assert "perf/diagnosis/text_summary" in events.Tags()["tensors"]
    assert (Path(trainer.logger.log_dir) / "perf_session.json").exists()


def test_logger_without_room_for_attributes_is_left_alone(make_trainer: Make) -> None:
    class Slotted:
        __slots__ = ("n",)
        save_dir = name = version = root_dir = log_dir = None

        def __init__(self) -> None:
            self.n = 0

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.n += 1

        def save(self) -> None: ...

        def finalize(self, status: str) -> None: ...

        def log_hyperparams(self, *_: Any) -> None: ...

        def log_graph(self, *_: Any) -> None: ...

        def after_save_checkpoint(self, *_: Any) -> None: ...

    logger = Slotted()
    doctor = PerfDoctor(schedule=None)
    trainer = make_trainer(doctor, log_every_n_steps=1)
    trainer.loggers = [logger]
    trainer.fit(Tiny(), loader())
    assert doctor.session.probes_off == ()
    assert logger.n >= 8


# -- bars ------------------------------------------------------------


@pytest.mark.parametrize("make_bar", [RichProgressBar, TQDMProgressBar])
def test_report_is_printed_when_a_progress_bar_is_alive(
    make_trainer: Make, make_bar: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = PerfDoctor()
    trainer = make_trainer(make_bar(), doctor, enable_progress_bar=True)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader(), loader(2))
    assert_nothing_left(trainer, profiler)
    assert_adds_up(doctor.session)
    assert "PerfDoctor" in capsys.readouterr().out
    assert any(t.kind == "progress_bar" for t in doctor.session.steady.named)


# -- copies ------------------------------------------------------------


class Copies(Callback):
    """Copies all that hangs on the Trainer, in the middle of a step."""

    def __init__(self) -> None:
        self.copied: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            doctor = next(c for c in trainer.callbacks if isinstance(c, PerfDoctor))
            for one in (doctor, *trainer.loggers, trainer.checkpoint_callback):
                if one is not None:
                    self.copied += [copy.deepcopy(one), pickle.loads(pickle.dumps(one))]


def test_doctor_and_loggers_can_be_copied_before_during_and_after_fit(make_trainer: Make, tmp_path: Path) -> None:
    doctor = pickle.loads(pickle.dumps(copy.deepcopy(PerfDoctor(select=["PD1"], out_dir=tmp_path / "out"))))
    assert doctor.select == ("PD1",)
    copies = Copies()
    loggers = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "tb")]
    trainer = make_trainer(doctor, copies, logger=loggers, enable_checkpointing=True)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader())
    assert_nothing_left(trainer, profiler)
    assert len(copies.copied) == 8
    for copied in copies.copied:
        assert not any(type(v).__module__ == "lightning_perf.seams" for v in vars(copied).values())
    for logger in copies.copied[2:4]:
        logger.log_metrics({"after": 1.0}, step=1)
    for after in (copy.deepcopy(doctor), pickle.loads(pickle.dumps(doctor))):
        assert after.session == doctor.session
        assert after.out_dir == doctor.out_dir


# -- LightningCLI ------------------------------------------------------------


def test_arguments_parse_when_given_to_lightning_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch.cli import LightningCLI

    class Model(Tiny):
        def __init__(self) -> None:
            super().__init__()

        def train_dataloader(self) -> Any:
            return loader()

    cli = LightningCLI(
        Model,
        save_config_callback=None,
        args=[
            "fit",
            "--trainer.callbacks+=lightning_perf.PerfDoctor",
            "--trainer.callbacks.schedule=[1,1,3]",
            "--trainer.callbacks.select=[PD1]",
            "--trainer.max_epochs=1",
            "--trainer.accelerator=cpu",
            "--trainer.logger=false",
            "--trainer.enable_checkpointing=false",
            "--trainer.enable_progress_bar=false",
            f"--trainer.default_root_dir={tmp_path}",
        ],
    )
    (doctor,) = [c for c in cli.trainer.callbacks if isinstance(c, PerfDoctor)]
    assert tuple(doctor.schedule) == (1, 1, 3)
    assert tuple(doctor.select) == ("PD1",)
    assert doctor.session.run.n_steps == 8
