"""PerfDoctor together with the user's own profilers, loggers, progress bars and copies."""

from __future__ import annotations

import copy
import csv
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, PyTorchProfiler, SimpleProfiler

from lightning_perf import PerfDoctor, run_reports
from lightning_perf.records import from_json

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


def test_users_action_is_not_a_fetch_when_its_name_ends_in_next(make_trainer: Make) -> None:
    class Announces(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            with self.trainer.profiler.profile("[Mine].token_next"):
                return super().training_step(batch, batch_idx)

    doctor = PerfDoctor(schedule=None)
    make_trainer(doctor).fit(Announces(), loader())
    assert_adds_up(doctor.session)
    assert doctor.session.steady.phases["forward"].p50_s > doctor.session.steady.phases["data_wait"].p50_s / 10


# -- loggers ------------------------------------------------------------


class Rows(Logger):
    """A user's logger that keeps what it gets; ``allowed`` are its columns, None for any."""

    allowed: set[str] | None = None
    run_id = "run"

    def __init__(self) -> None:
        Logger.__init__(self)
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "rows"

    @property
    def version(self) -> str:
        return "run"

    @property
    def save_dir(self) -> str | None:
        return None

    @property
    def experiment(self) -> Any:
        return self

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Log nothing."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.allowed is not None and set(metrics) - self.allowed:
            raise KeyError(f"no such columns: {set(metrics) - self.allowed}")
        self.rows.append((step, dict(metrics)))

    def after_save_checkpoint(self, *_: Any) -> None:
        """Keep nothing."""

    def log_text(self, run_id: str, text: str, file: str) -> None:
        """Keep no file."""

    def finalize(self, status: str) -> None:
        """Nothing is open."""


class Hosted(Rows, MLFlowLogger):
    """Lightning's logger of a hosted service, as a user derives from it."""


class FixedColumns(Rows):
    """A logger that refuses unknown metrics."""

    allowed = {"loss", "val_loss", "epoch"}


class HostedFixedColumns(FixedColumns, MLFlowLogger):
    """A user's logger of a hosted service that refuses unknown metrics."""


class FakeWandbRun:
    """A W&B run: ``log`` numbers rows, and drops what comes with a lower number than the open row's."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.dropped: list[dict[str, float]] = []
        self._step = 0

    def log(self, data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
        if step is not None and step < self._step:
            self.dropped.append(data)
            return
        self._step = self._step if step is None else step
        self.rows.setdefault(self._step, {}).update(data)
        if commit or (commit is None and step is None):
            self._step += 1


class Wandb(WandbLogger):
    """Lightning's logger of W&B without its service."""

    def __init__(self) -> None:
        Logger.__init__(self)
        self._experiment = FakeWandbRun()
        self._prefix = "mine"
        self._wandb_init: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return "run"

    @property
    def save_dir(self) -> str | None:
        return None

    @property
    def experiment(self) -> Any:
        return self._experiment

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Log nothing."""

    def after_save_checkpoint(self, *_: Any) -> None:
        """Keep nothing."""

    def finalize(self, status: str) -> None:
        """Nothing is open."""


class LogsToWandb(Callback):
    """Logs a row of the user's own after each step, with the number that W&B has come to."""

    def __init__(self, run: FakeWandbRun) -> None:
        self.run = run
        self.n_rows = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.n_rows += 1
        self.run.log({"mine": 1.0}, step=self.n_rows)


@pytest.fixture
def all_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch is reported, however long the machine took for the reports before."""
    monkeypatch.setattr(run_reports, "_REPORTING_ALLOWED_S", float("inf"))


def keys_by_row(rows: list[tuple[int | None, dict[str, float]]]) -> list[tuple[int | None, list[str]]]:
    return [(step, sorted(row)) for step, row in rows]


def rows_of(make_trainer: Make, logger: Any, *callbacks: Any) -> list[tuple[int | None, dict[str, float]]]:
    trainer = make_trainer(*callbacks, logger=logger, log_every_n_steps=2, max_epochs=3)
    trainer.fit(Tiny(), loader(), loader(2))
    assert trainer.global_step == 24
    return logger.rows


def is_ours(row: tuple[int | None, dict[str, float]]) -> bool:
    return any(key.startswith("perf/") for key in row[1])


@pytest.mark.usefixtures("all_reports")
def test_figures_are_rows_of_their_own_when_the_logger_is_hosted(make_trainer: Make) -> None:
    doctor = PerfDoctor(schedule=None)
    rows, without = rows_of(make_trainer, Hosted(), doctor), rows_of(make_trainer, Hosted())
    ours = [row for row in rows if is_ours(row)]
    assert [step for step, _ in ours] == [7, 15, 23]
    assert all(key.startswith("perf/") and type(value) is float for _, row in ours for key, value in row.items())
    assert all("perf/step_ms/p50" in row for _, row in ours)
    assert keys_by_row([row for row in rows if not is_ours(row)]) == keys_by_row(without)
    assert [step for step, _ in rows] == sorted(step for step, _ in rows)
    assert doctor.session.probes_off == ()


@pytest.mark.usefixtures("all_reports")
@pytest.mark.parametrize("kind", [Rows, FixedColumns])
def test_rows_are_unchanged_when_the_logger_is_the_users(make_trainer: Make, kind: Any) -> None:
    doctor = PerfDoctor(schedule=None)
    rows, without = rows_of(make_trainer, kind(), doctor), rows_of(make_trainer, kind())
    assert keys_by_row(rows) == keys_by_row(without)
    assert doctor.session.probes_off == ()


@pytest.mark.usefixtures("all_reports")
def test_figures_stop_with_one_warning_when_a_hosted_logger_refuses_them(
    make_trainer: Make, caplog: pytest.LogCaptureFixture
) -> None:
    doctor = PerfDoctor(schedule=None)
    with caplog.at_level("WARNING"):
        rows = rows_of(make_trainer, HostedFixedColumns(), doctor)
    assert keys_by_row(rows) == keys_by_row(rows_of(make_trainer, FixedColumns()))
    assert [failure.probe for failure in doctor.session.probes_off] == ["HostedFixedColumns"]
    (warning,) = [r.getMessage() for r in caplog.records if r.name.startswith("lightning_perf")]
    assert "no such columns" in warning


@pytest.mark.usefixtures("all_reports")
def test_wandb_drops_no_row_of_the_users_when_figures_are_logged(make_trainer: Make) -> None:
    def run_of(*callbacks: Any) -> FakeWandbRun:
        logger = Wandb()
        run: FakeWandbRun = logger.experiment
        # Lightning's row and the user's of each step share a number.
        trainer = make_trainer(LogsToWandb(run), *callbacks, logger=logger, log_every_n_steps=1, max_epochs=3)
        trainer.fit(Tiny(), loader())
        assert run.dropped == []
        return run

    rows, without = run_of(PerfDoctor(schedule=None, reports=("tensorboard",))).rows, run_of().rows
    ours = [number for number, row in rows.items() if "mine-perf/step_ms/p50" in row]
    assert len(ours) == 3
    plain = {number: {key for key in row if "perf/" not in key} for number, row in rows.items()}
    # A report after the last row is in a row that W&B completes when the run ends.
    assert {n: keys for n, keys in plain.items() if keys != {"trainer/global_step"}} == {
        number: set(row) for number, row in without.items()
    }


@pytest.mark.usefixtures("all_reports")
def test_csv_file_has_the_same_columns_as_without_perf_doctor(make_trainer: Make, tmp_path: Path) -> None:
    columns = []
    for i, callbacks in enumerate(([], [PerfDoctor()])):
        trainer = make_trainer(*callbacks, logger=CSVLogger(tmp_path / str(i)), log_every_n_steps=2, max_epochs=2)
        profiler = trainer.profiler
        trainer.fit(Tiny(), loader())
        assert_nothing_left(trainer, profiler)
        rows = list(csv.DictReader((Path(trainer.logger.log_dir) / "metrics.csv").open()))
        columns.append([sorted(key for key, value in row.items() if value) for row in rows])
    assert columns[0] == columns[1]
    assert (Path(trainer.logger.log_dir) / "perf_session.json").exists()


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


class Raises(Callback):
    """Raises in a step of the second epoch."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 11:
            raise RuntimeError("planted")


@pytest.mark.usefixtures("all_reports")
@pytest.mark.parametrize(("callbacks", "end", "steps"), [([], ("finished", 16), [8, 16]),
                                                         ([Raises()], ("failed", 11), [8, 11])])  # fmt: skip
def test_event_file_ends_with_the_session_of_the_whole_run(
    make_trainer: Make, tmp_path: Path, callbacks: list[Callback], end: tuple[str, int], steps: list[int]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    doctor = PerfDoctor()
    trainer = make_trainer(doctor, *callbacks, logger=TensorBoardLogger(tmp_path), max_epochs=2)
    with suppress(RuntimeError):
        trainer.fit(Tiny(), loader())
    events = EventAccumulator(trainer.logger.log_dir)
    events.Reload()
    last = events.Tensors(f"perfdoctor/{doctor.session.run.id}")[-1]
    session = from_json(last.tensor_proto.string_val[0], "the event file")
    assert (session.run.status, session.run.n_steps) == end
    assert [each.step for each in events.Scalars("perf/step_ms/p50")] == steps
    assert len(list(Path(trainer.logger.log_dir).glob("events.*"))) == 1


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
    """Copy the Trainer's parts in the middle of a step."""

    def __init__(self) -> None:
        self.copied: list[Any] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            doctor = next(c for c in trainer.callbacks if isinstance(c, PerfDoctor))
            for one in (doctor, *trainer.loggers, trainer.checkpoint_callback):
                if one is not None:
                    self.copied += [copy.deepcopy(one), pickle.loads(pickle.dumps(one))]


def test_perf_doctor_and_loggers_can_be_copied_before_during_and_after_fit(make_trainer: Make, tmp_path: Path) -> None:
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
