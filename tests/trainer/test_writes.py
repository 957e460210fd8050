"""Files that PerfDoctor cannot or must not write are skipped, without effect on training or diagnosis."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_perf import PerfDoctor, load
from lightning_perf.errors import ConfigError
from lightning_perf.records import SESSION_FILE, files

from .conftest import Make, assert_nothing_left
from .models import Tiny, loader

REPORTS = ("console", "tensorboard", "json", "html")
NO_ROOM = "128 MiB would stay free"


class FailsInStep(Tiny):
    """Raises in its third step."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            raise self.error
        return super().training_step(batch, batch_idx)


def below(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if not each.is_dir())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("lightning_perf") and r.levelno >= 30]


def full_disk(path: Any) -> SimpleNamespace:
    return SimpleNamespace(total=2**40, used=2**40 - 2**20, free=2**20)


@pytest.fixture
def nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every disk reports that 1 MiB is free."""
    monkeypatch.setattr(shutil, "disk_usage", full_disk)


# -- a full disk ------------------------------------------------------------


@pytest.mark.usefixtures("nearly_full")
def test_nothing_is_written_but_the_diagnosis_is_shown_when_the_disk_is_nearly_full(
    make_trainer: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor = PerfDoctor(schedule=(2, 1, 2), reports=REPORTS)
    trainer = make_trainer(doctor, logger=TensorBoardLogger(tmp_path / "tb"), max_epochs=2)
    profiler = trainer.profiler
    with caplog.at_level(logging.WARNING):
        trainer.fit(Tiny(), loader(8))
    assert trainer.global_step == 16
    assert_nothing_left(trainer, profiler)
    (warning,) = warnings_of(caplog)
    assert NO_ROOM in warning
    assert {f.probe for f in doctor.session.probes_off} >= {"tensorboard", "json", "html", "traces"}
    assert all(NO_ROOM in failure.error for failure in doctor.session.probes_off)
    (window,) = doctor.session.windows
    assert window.status == "recorded"
    assert window.trace is not None
    assert window.file is None
    assert NO_ROOM in window.reason
    assert "median step" in capsys.readouterr().out
    assert [Path(name).name.partition(".")[0] for name in below(tmp_path)] == ["events", "hparams"]


@pytest.mark.usefixtures("nearly_full")
def test_users_event_file_is_unchanged_when_the_disk_is_nearly_full(make_trainer: Make, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = []
    for i, callbacks in enumerate(([], [PerfDoctor(schedule=None)])):
        trainer = make_trainer(*callbacks, logger=TensorBoardLogger(tmp_path / str(i)), log_every_n_steps=1)
        trainer.fit(Tiny(), loader())
        events = EventAccumulator(trainer.logger.log_dir)
        events.Reload()
        tags.append(events.Tags())
    assert tags[0] == tags[1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_session_names_the_error_when_writing_fails(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", fails)
    doctor = PerfDoctor(schedule=(2, 1, 2), reports=REPORTS, out_dir=tmp_path / "out")
    trainer = make_trainer(doctor, max_epochs=2)
    with caplog.at_level(logging.WARNING):
        trainer.fit(Tiny(), loader(8))
    assert trainer.global_step == 16
    (warning,) = warnings_of(caplog)
    assert os.strerror(code) in warning
    assert {f.probe for f in doctor.session.probes_off} == {"json", "html", "traces", "last save"}
    assert below(tmp_path / "out") == []


@pytest.mark.usefixtures("nearly_full")
def test_error_is_the_users_when_the_disk_is_nearly_full(
    make_trainer: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    doctor = PerfDoctor(schedule=None, reports=REPORTS, out_dir=tmp_path / "out")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        make_trainer(doctor).fit(FailsInStep(error), loader())
    assert raised.value is error
    assert doctor.session.run.status == "failed"
    assert doctor.session.memory.oom.post_mortem_file is None
    assert "memory ran out" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_users_logger_never_fails_when_the_disk_is_small(make_trainer: Make, small_disk: Path) -> None:
    doctor = PerfDoctor(schedule=(2, 1, 2, 0), reports=REPORTS)
    trainer = make_trainer(doctor, logger=TensorBoardLogger(small_disk), log_every_n_steps=1, max_epochs=20)
    trainer.fit(Tiny(), loader(8))
    assert trainer.global_step == 160
    assert shutil.disk_usage(small_disk).free > 2**19


# -- folders and files in the way ------------------------------------------------------------


def too_long(folder: Path) -> Path:
    return folder / ("x" * 300)


def path_too_long(folder: Path) -> Path:
    return folder / ("y" * 5000)


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("a file")
    return folder / "file" / "out"


def zero_byte(folder: Path) -> Path:
    return folder / "a\0b"


def link_to_nowhere(folder: Path) -> Path:
    (folder / "link").symlink_to(folder / "missing" / "folder")
    return folder / "link"


@pytest.mark.skipif(os.name == "nt", reason="which names are too long depends on the system")
@pytest.mark.parametrize("make", [too_long, path_too_long, below_a_file, zero_byte, link_to_nowhere])
def test_training_and_diagnosis_go_on_when_the_folder_cannot_be_made(
    make_trainer: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], Path],
) -> None:
    doctor = PerfDoctor(schedule=(2, 1, 2), reports=REPORTS, out_dir=make(tmp_path))
    trainer = make_trainer(doctor, max_epochs=2)
    with caplog.at_level(logging.WARNING):
        trainer.fit(Tiny(), loader(8))
    assert trainer.global_step == 16
    assert len(warnings_of(caplog)) == 1, warnings_of(caplog)
    assert f"cannot write to {doctor.out_dir}" in warnings_of(caplog)[0]
    assert {f.probe: f.step for f in doctor.session.probes_off} == dict.fromkeys(
        ("json", "last save", "html", "traces"), 0
    )
    assert "median step" in capsys.readouterr().out


def test_warning_is_shown_when_out_dir_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError, match="is a file: expected a folder"):
        PerfDoctor(out_dir=tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_training_goes_on_when_named_pipes_have_the_names_of_its_files(make_trainer: Make, tmp_path: Path) -> None:
    names = [SESSION_FILE, "perf_report.html"]
    for name in names:
        os.mkfifo(tmp_path / name)
    doctor = PerfDoctor(schedule=None, reports=REPORTS, out_dir=tmp_path)
    trainer = make_trainer(doctor)
    trainer.fit(Tiny(), loader())
    assert trainer.global_step == 8
    assert {f.probe for f in doctor.session.probes_off} == {"json", "html", "last save"}
    assert all("named pipe" in failure.error for failure in doctor.session.probes_off)
    assert all((tmp_path / name).is_fifo() for name in names)


def test_session_is_saved_when_the_folder_is_deleted_during_the_run(make_trainer: Make, tmp_path: Path) -> None:
    class Deletes(Tiny):
        def on_train_epoch_start(self) -> None:
            shutil.rmtree(tmp_path / "out", ignore_errors=True)

    doctor = PerfDoctor(schedule=None, out_dir=tmp_path / "out")
    make_trainer(doctor, max_epochs=3).fit(Deletes(), loader())
    assert doctor.session.probes_off == ()
    assert load(tmp_path / "out").run.id == doctor.session.run.id
