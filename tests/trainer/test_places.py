"""Results of a run at URLs, in folders that no two runs share, and in the runs of hosted services."""

from __future__ import annotations

import json
import logging
import random
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CometLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from typer.testing import CliRunner

from lightning_perf import PerfDoctor, load, run_reports, seams
from lightning_perf.cli.app import app
from lightning_perf.errors import ConfigError
from lightning_perf.records import SESSION_FILE, from_json
from lightning_perf.records.remote import RemotePath
from lightning_perf.remote_folder import RemoteFolder

from .conftest import Make, assert_nothing_left
from .models import Tiny, loader

FILES = {"perf_session.json", "perf_report.html"}


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("lightning_perf") and r.levelno >= 30]


# -- URLs ------------------------------------------------------------


def test_session_page_and_traces_are_written_to_a_url(
    make_trainer: Make, url: str, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = PerfDoctor(schedule=(2, 1, 2), reports=("console", "json", "html"), out_dir=url)
    trainer = make_trainer(doctor, max_epochs=2)
    profiler = trainer.profiler
    trainer.fit(Tiny(), loader(8))
    assert_nothing_left(trainer, profiler)
    assert doctor.session.probes_off == ()
    (window,) = doctor.session.windows
    names = {file.name for file in RemotePath(url).glob("**/*")}
    assert names == {*FILES, window.file}
    assert load(url) == doctor.session
    assert url in capsys.readouterr().out
    assert url in str(doctor.report(full=True))
    assert list(scratch.iterdir()) == []
    assert not list(tmp_path.glob("memory*"))


def test_commands_read_what_a_run_left_at_a_url(make_trainer: Make, url: str, tmp_path: Path) -> None:
    make_trainer(PerfDoctor(schedule=(2, 1, 2), out_dir=url), max_epochs=2).fit(Tiny(), loader(8))
    make_trainer(PerfDoctor(schedule=None, out_dir=f"{url}2/version_0")).fit(Tiny(), loader(8))
    trace = next(file.url for file in RemotePath(url).glob("*.gz"))
    for command in (
        ["report", url],
        ["report", f"{url}/{SESSION_FILE}", "--format", "html", "--out", f"{url}/page.html"],
        ["compare", url, f"{url}2"],
        ["analyze", url],
        ["analyze", trace],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.exception
    assert RemotePath(f"{url}/page.html").read_bytes().startswith(b"<!")
    with pytest.raises(ConfigError, match="exists already"):
        CliRunner().invoke(app, ["report", url, "--out", f"{url}/page.html"], catch_exceptions=False)


@pytest.mark.parametrize(("command", "script"), [("trial", ["true"]), ("data", ["true"]), ("demo", [])])
def test_commands_that_need_a_local_folder_refuse_a_url(command: str, script: list[str], url: str) -> None:
    with pytest.raises(ConfigError, match=f"--out {url} is a URL"):
        CliRunner().invoke(app, [command, "--out", url, *script], catch_exceptions=False)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server on this machine that speaks S3's protocol."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    values = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**values, "ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port())}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_runs_are_written_to_s3_and_read_from_there(make_trainer: Make, bucket: str, tmp_path: Path) -> None:
    url = f"{bucket}/runs/a"
    for _ in range(2):  # the second run keeps the session of the first one
        doctor = PerfDoctor(schedule=(2, 1, 2), reports=("json", "html"), out_dir=url)
        make_trainer(doctor, max_epochs=2).fit(Tiny(), loader(8))
        assert doctor.session.probes_off == ()
    assert load(url) == doctor.session
    assert len(RemotePath(url).glob("perf_session*.json")) == 2
    assert len(RemotePath(url).glob("*.pt.trace.json.gz")) == 2
    for command in (["report", url], ["report", url, "--out", f"{url}/report.txt"], ["analyze", url]):
        assert CliRunner().invoke(app, command).exit_code == 0
    assert b"PerfDoctor" in RemotePath(f"{url}/report.txt").read_bytes()
    assert not list(tmp_path.glob("s3*"))


def test_missing_bucket_costs_the_files_only(
    make_trainer: Make, bucket: str, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = bucket + "-missing"
    doctor = PerfDoctor(schedule=None, out_dir=f"{missing}/run")
    with caplog.at_level(logging.WARNING, "lightning_perf"):
        make_trainer(doctor).fit(Tiny(), loader())
    assert [failure.probe for failure in doctor.session.probes_off] == ["copy"]
    (warning,) = warnings_of(caplog)
    assert f"{missing}/run" in warning
    assert not RemotePath(missing).exists()


def test_folder_of_a_logger_may_be_a_url(make_trainer: Make, url: str) -> None:
    class Remote(TensorBoardLogger):
        @property
        def log_dir(self) -> str:
            return url

    make_trainer(PerfDoctor(schedule=None), logger=Remote("tb")).fit(Tiny(), loader())
    assert load(url).run.status == "finished"


def test_copy_waits_for_the_end_when_no_thread_can_be_started(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    folder = RemoteFolder(RemotePath(url))
    (folder.folder / "hang.txt").write_text("text")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        folder.copy_soon()
    folder.finish(60)
    assert (RemotePath(url) / "hang.txt").read_bytes() == b"text"


def test_last_copy_is_made_when_python_ends_and_no_thread_can_be_started(
    url: str, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    doctor = PerfDoctor(schedule=None, out_dir=url, probe_data=False)
    for _ in doctor.steps(loader(4)):
        pass
    (spare,) = [thread for thread in threading.enumerate() if thread.name == "lightning-perf-spare"]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        doctor._loop_run._end_at_exit()
    assert load(url) == doctor.session
    assert doctor.session.run.status == "finished"
    assert doctor.session.probes_off == ()
    assert list(scratch.iterdir()) == []
    spare.join(60)
    assert not spare.is_alive()


def test_no_folder_is_left_when_no_hook_ends_the_run(make_trainer: Make, url: str, scratch: Path) -> None:
    class Replaces(Callback):
        def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
            if trainer.current_epoch == 1:
                trainer.callbacks = []

    doctor = PerfDoctor(schedule=None, out_dir=url)
    make_trainer(doctor, Replaces(), max_epochs=2).fit(Tiny(), loader(8))
    assert list(scratch.iterdir()) == []
    assert load(url).run.status == "running"


def test_session_is_at_the_url_after_each_epoch(make_trainer: Make, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reports, "_REPORTING_ALLOWED_S", float("inf"))

    class Waits(Tiny):
        def on_train_epoch_start(self) -> None:
            deadline = time.monotonic() + 60
            while self.current_epoch and not RemotePath(url).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.seen = load(url).run.status if self.current_epoch else None

    model = Waits()
    make_trainer(PerfDoctor(schedule=None, out_dir=url), max_epochs=2).fit(model, loader())
    assert model.seen == "running"
    assert load(url).run.status == "finished"


def test_files_stay_here_when_the_url_cannot_be_written(
    make_trainer: Make, url: str, scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Access Denied")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    doctor = PerfDoctor(schedule=None, out_dir=url)
    trainer = make_trainer(doctor, max_epochs=2)
    with caplog.at_level(logging.WARNING):
        trainer.fit(Tiny(), loader())
    assert trainer.global_step == 16
    (folder,) = scratch.iterdir()
    (warning,) = warnings_of(caplog)
    assert url in warning
    assert "Access Denied" in warning
    assert str(folder) in warning
    assert load(folder).run.status == "finished"
    assert folder.name in str(doctor.report(full=True))
    assert [failure.probe for failure in doctor.session.probes_off] == ["copy"]
    assert doctor.verdict is not None


def test_run_ends_when_the_storage_does_not_answer(
    make_trainer: Make, url: str, scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(run_reports, "_UPLOAD_S", 0.05)
    doctor = PerfDoctor(schedule=None, out_dir=url)
    with caplog.at_level(logging.WARNING):
        make_trainer(doctor).fit(Tiny(), loader())
    assert "not done after 0.05 s" in warnings_of(caplog)[0]
    assert [failure.probe for failure in doctor.session.probes_off] == ["copy"]


def test_unknown_storage_costs_the_files_only(
    make_trainer: Make, scratch: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    doctor = PerfDoctor(schedule=(2, 1, 2), reports=("json", "html"), out_dir="nothing://host/run")
    with caplog.at_level(logging.WARNING):
        make_trainer(doctor, max_epochs=2).fit(Tiny(), loader(8))
    (warning,) = warnings_of(caplog)
    assert "cannot write to nothing://host/run" in warning
    assert "nothing" in warning
    assert doctor.session.run.n_steps == 16
    assert list(scratch.iterdir()) == []
    assert not list(tmp_path.glob("nothing*"))


def test_post_mortem_is_at_the_url_when_no_report_is_written(make_trainer: Make, url: str, tmp_path: Path) -> None:
    class RunsOut(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    with pytest.raises(torch.OutOfMemoryError):
        make_trainer(PerfDoctor(schedule=None, reports=(), out_dir=url)).fit(RunsOut(), loader())
    assert [file.name for file in RemotePath(url).glob("*")] == ["out_of_memory.txt"]
    assert not list(tmp_path.glob("*.txt"))


# -- folders ------------------------------------------------------------


class Service(Logger):
    """A logger of a service: one folder for all runs of a project."""

    def __init__(self, folder: str | None, version: Any) -> None:
        super().__init__()
        self.save_dir, self.version, self.name = folder, version, "project"  # type: ignore[misc]

    save_dir = version = name = None  # type: ignore[assignment]

    def log_metrics(self, *_: Any, **__: Any) -> None:
        """Log nothing."""

    log_hyperparams = log_metrics


@pytest.mark.parametrize(("version", "folder"), [("ab12", "project/ab12"), (3, "project/version_3")])
def test_session_is_in_the_folder_of_the_loggers_run(
    make_trainer: Make, tmp_path: Path, version: Any, folder: str
) -> None:
    for given, root in ((str(tmp_path / "logs"), tmp_path / "logs"), (None, tmp_path)):
        make_trainer(PerfDoctor(schedule=None), logger=Service(given, version)).fit(Tiny(), loader())
        assert load(root / folder).run.status == "finished"


@pytest.mark.parametrize("logger", [False, Service("logs", None)])
def test_runs_without_a_name_share_no_folder(
    make_trainer: Make, tmp_path: Path, logger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reports.time, "strftime", lambda *_: "20260101-000000")
    for _ in range(2):
        make_trainer(PerfDoctor(schedule=None), logger=logger).fit(Tiny(), loader(2))
    root = tmp_path / "logs" if logger else tmp_path
    assert len(list((root / "perf_logs").glob(f"20260101-000000-*/{SESSION_FILE}"))) == 2


def test_run_has_a_folder_when_its_logger_does_not_name_one(make_trainer: Make, tmp_path: Path) -> None:
    class Broken(Service):
        @property
        def version(self) -> Any:
            raise RuntimeError("offline")

        @version.setter
        def version(self, _: Any) -> None:
            pass

    doctor = PerfDoctor(schedule=None)
    make_trainer(doctor, logger=Broken("logs", None)).fit(Tiny(), loader(2))
    assert len(list((tmp_path / "perf_logs").glob(f"*/{SESSION_FILE}"))) == 1
    assert [failure.probe for failure in doctor.session.probes_off] == ["folder"]


# -- hosted services ------------------------------------------------------------


def uploaded_by(make_trainer: Make, logger: Any, read: Callable[[], Mapping[str, bytes]], **arguments: Any) -> None:
    """Train with a logger, and check the files that its service has then."""
    doctor = PerfDoctor(schedule=None, **arguments)
    trainer = make_trainer(doctor, logger=logger)
    states: list[Any] = []
    upload = seams.upload_files

    def watched(*given: Any) -> None:
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        upload(*given)
        states.append(before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seams, "upload_files", watched)
        trainer.fit(Tiny(), loader())
    assert trainer.global_step == 8
    assert doctor.session.probes_off == ()
    assert states == [True]
    files = read()
    assert set(files) == FILES
    assert from_json(files["perf_session.json"], "upload") == doctor.session
    assert files["perf_report.html"].startswith(b"<!")


def test_wandb_run_has_an_artifact_with_session_and_report(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    values = {"MODE": "offline", "SILENT": "true", "CACHE_DIR": str(tmp_path), "DATA_DIR": str(tmp_path)}
    for name, value in values.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    artifacts: list[Any] = []
    log_artifact = wandb.sdk.wandb_run.Run.log_artifact

    def logged(run: Any, artifact: Any, *args: Any, **kwargs: Any) -> Any:
        artifacts.append(artifact)
        return log_artifact(run, artifact, *args, **kwargs)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log_artifact", logged)
    logger = WandbLogger(project="tests", save_dir=tmp_path, offline=True)

    def read() -> dict[str, bytes]:
        (artifact,) = artifacts
        assert artifact.name.startswith(f"perf_session-{logger.version}")
        return {name: Path(entry.local_path).read_bytes() for name, entry in artifact.manifest.entries.items()}

    try:
        uploaded_by(make_trainer, logger, read)
    finally:
        wandb.finish()
    assert load(tmp_path / "tests" / logger.version).run.status == "finished"


def test_mlflow_run_has_session_and_report_as_artifacts(make_trainer: Make, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    logger = MLFlowLogger(tracking_uri=store, artifact_location=f"file://{tmp_path}/artifacts")

    def read() -> dict[str, bytes]:
        client = mlflow.MlflowClient(store)
        paths = [one.path for one in client.list_artifacts(logger.run_id, "lightning_perf")]
        folder = Path(client.download_artifacts(logger.run_id, "lightning_perf", str(tmp_path)))
        return {Path(path).name: (folder / Path(path).name).read_bytes() for path in paths}

    uploaded_by(make_trainer, logger, read)
    assert load(tmp_path / logger.experiment_id / logger.run_id).run.status == "finished"


def test_comet_experiment_has_session_and_report_as_assets(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comet_ml = pytest.importorskip("comet_ml")
    monkeypatch.setenv("COMET_DISABLE_AUTO_LOGGING", "1")
    logger = CometLogger(online=False, offline_directory=str(tmp_path), project="tests")
    # Lightning disables what it creates offline.
    logger._experiment = comet_ml.OfflineExperiment(offline_directory=str(tmp_path), project_name="tests")

    def read() -> dict[str, bytes]:
        logger.experiment.end()
        files = {}
        with zipfile.ZipFile(next(tmp_path.glob("*.zip"))) as bundle:
            for line in bundle.read("messages.json").decode().splitlines():
                payload = json.loads(line)["payload"]
                name = (payload.get("additional_params") or {}).get("fileName") or ""
                if name.startswith("lightning_perf/"):
                    files[name.removeprefix("lightning_perf/")] = bundle.read(Path(payload["file_path"]).name)
        return files

    uploaded_by(make_trainer, logger, read)


def test_neptune_run_takes_session_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    neptune = pytest.importorskip("neptune")
    monkeypatch.chdir(tmp_path)
    kind = type("NeptuneLogger", (), {"__module__": "lightning.pytorch.loggers.neptune"})  # it refuses to be created
    logger = kind()
    logger.experiment = neptune.init_run(mode="offline", project="tests/tests", capture_hardware_metrics=False)
    assert seams.accepts_any_figure(logger)
    seams.upload_files(logger, "perf_session", {"perf_session.json": b"session", "perf_report.html": b"page"})
    logger.experiment.stop()
    assert {file.read_bytes() for file in (tmp_path / ".neptune").rglob("upload_path/*")} == {b"session", b"page"}


class Fake(MLFlowLogger):
    """Lightning's logger of MLflow without its client."""

    def __init__(self, log_text: Callable[..., None]) -> None:
        Logger.__init__(self)
        self._experiment = SimpleNamespace(log_text=log_text)

    name = version = run_id = "run"  # type: ignore[assignment]
    save_dir = None  # type: ignore[assignment]
    experiment = property(lambda self: self._experiment)  # type: ignore[assignment]

    def log_metrics(self, *_: Any, **__: Any) -> None:
        """Log nothing."""

    log_hyperparams = after_save_checkpoint = finalize = log_metrics  # type: ignore[assignment]


def test_report_is_uploaded_when_the_folder_cannot_be_written(make_trainer: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    uploaded: dict[str, str] = {}
    logger = Fake(lambda run_id, text, name: uploaded.update({name: text}))
    make_trainer(PerfDoctor(schedule=None, out_dir=tmp_path / "file" / "run"), logger=logger).fit(Tiny(), loader())
    assert set(uploaded) == {f"lightning_perf/{name}" for name in FILES}


def test_failing_upload_costs_itself_only(make_trainer: Make, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: Any) -> None:
        raise ConnectionError("no route to host")

    doctor = PerfDoctor(schedule=None)
    trainer = make_trainer(doctor, logger=Fake(refuse))
    with caplog.at_level(logging.WARNING):
        trainer.fit(Tiny(), loader())
    assert trainer.global_step == 8
    assert [failure.probe for failure in doctor.session.probes_off] == ["upload to Fake"]
    (warning,) = warnings_of(caplog)
    assert "no route to host" in warning


def test_interrupted_run_uploads_only_the_session(make_trainer: Make) -> None:
    class Stops(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3:
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    names: list[str] = []
    trainer = make_trainer(PerfDoctor(schedule=None), logger=Fake(lambda run_id, text, name: names.append(name)))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer.fit(Stops(), loader())
    assert names == ["lightning_perf/perf_session.json"]


def test_uploads_of_an_interrupted_run_share_one_second(
    make_trainer: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stops(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise KeyboardInterrupt

    limits: list[float] = []

    def slow(limit_s: float, *_: Any) -> None:
        limits.append(limit_s)
        time.sleep(0.05)

    monkeypatch.setattr(run_reports, "within", slow)
    monkeypatch.setattr(run_reports, "_has_content", lambda _: True)
    monkeypatch.setattr(RemoteFolder, "finish", lambda _, limit_s, *rest: slow(limit_s))
    loggers = [Fake(lambda *_: None), Fake(lambda *_: None)]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        make_trainer(PerfDoctor(schedule=None, out_dir=url), logger=loggers).fit(Stops(), loader())
    assert limits[0] <= 1.0
    assert [after <= before - 0.05 for before, after in pairwise(limits)] == [True, True]


def test_nothing_is_uploaded_when_switched_off(make_trainer: Make) -> None:
    names: list[str] = []
    doctor = PerfDoctor(schedule=None, reports=("console", "tensorboard", "json"))
    make_trainer(doctor, logger=Fake(lambda run_id, text, name: names.append(name))).fit(Tiny(), loader())
    assert names == []
