"""Loggers, and folders that cannot be written to."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from trainer.models import Tiny

from .loops import Deep, varied
from .registry import Run, SkipKind, kind

_WRITES = ("traces", "json", "last save", "html")


class Own(Logger):
    """A logger that notes what it is given, without PerfDoctor's figures."""

    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes

    @property
    def name(self) -> str:
        return "own"

    @property
    def version(self) -> str:
        return "1"

    @property
    def experiment(self) -> Any:
        return self

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        self.notes.append("hyperparameters")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        metrics = {name: value for name, value in metrics.items() if not name.startswith("perf/")}
        if metrics:
            self.notes.append((step, metrics))

    def finalize(self, status: str) -> None:
        self.notes.append(status)


class Strict(Own):
    """Takes a fixed set of columns only."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        for name in metrics:
            if name not in ("loss", "val_loss", "epoch"):
                raise KeyError(name)
        super().log_metrics(metrics, step)


class Flaky(Own):
    """Fails once, which the user's code handles."""

    def __init__(self, notes: list[Any]) -> None:
        super().__init__(notes)
        self.n_calls = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.n_calls += 1
        if self.n_calls == 5:
            raise OSError("connection reset")
        super().log_metrics(metrics, step)


class Mutating(Own):
    """Takes metrics out of the dict that it is given."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        super().log_metrics(dict(metrics), step)
        metrics.clear()


@kind("csv-logger", core=True)
def csv_logger(run: Run) -> None:
    logger = CSVLogger(run.folder / "csv", flush_logs_every_n_steps=3)
    run.trainer(logger=logger, log_every_n_steps=2, max_epochs=3).fit(Deep(), varied(), varied(2))


@kind("tensorboard-logger")
def tensorboard(run: Run) -> None:
    logger = TensorBoardLogger(run.folder / "tb", name="run", version="1", log_graph=False)
    run.trainer(logger=logger, log_every_n_steps=2, enable_checkpointing=True).fit(Deep(), varied(), varied(2))


@kind("default-logger-and-checkpoints")
def default_logger(run: Run) -> None:
    run.trainer(logger=True, log_every_n_steps=3, enable_checkpointing=True, enable_model_summary=True).fit(
        Deep(), varied(), varied(2)
    )


@kind("several-loggers")
def several(run: Run) -> None:
    loggers = [CSVLogger(run.folder / "csv"), Own(run.notes), TensorBoardLogger(run.folder / "tb")]
    run.trainer(logger=loggers, log_every_n_steps=1).fit(Deep(), varied(), varied(2))


@kind("strict-logger", core=True)
def strict(run: Run) -> None:
    run.trainer(logger=Strict(run.notes), log_every_n_steps=1, max_epochs=3).fit(Deep(), varied(), varied(2))


@kind("strict-logger-that-logs-rarely")
def strict_rarely(run: Run) -> None:
    run.trainer(logger=Strict(run.notes), log_every_n_steps=1000, max_epochs=2).fit(Deep(), varied())


@kind("flaky-logger")
def flaky(run: Run) -> None:
    run.attempt(run.trainer(logger=Flaky(run.notes), log_every_n_steps=1).fit, Deep(), varied(), varied(2))


@kind("mutating-logger")
def mutating(run: Run) -> None:
    run.trainer(logger=Mutating(run.notes), log_every_n_steps=1).fit(Deep(), varied())


@kind("logger-used-directly")
def used_directly(run: Run) -> None:
    class Logs(Deep):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.logger.log_metrics({"mine": 1.0}, step=batch_idx)
            self.logger.log_metrics(metrics={"more": 2.0}, step=batch_idx)
            run.note(self.logger.log_metrics.__name__, self.logger.save.__name__)
            return super().training_step(batch, batch_idx)

    run.trainer(logger=Own(run.notes)).fit(Logs(), varied())


@kind("no-folder-name-fits")
def long_name(run: Run) -> None:
    trainer = run.trainer(logger=Own(run.notes), default_root_dir=run.folder / ("x" * 250))
    trainer.fit(Deep(), varied())


@kind("log-folder-too-long", may_fail=_WRITES, core=True)
def too_long(run: Run) -> None:
    run.trainer(logger=Named(run.notes, "y" * 300)).fit(Deep(), varied())


class Named(Own):
    """A logger with a folder of any name, which it does not write to."""

    def __init__(self, notes: list[Any], folder: str) -> None:
        super().__init__(notes)
        self.folder = folder

    @property
    def save_dir(self) -> str:
        return self.folder

    @property
    def log_dir(self) -> str:
        return self.folder


@kind("log-folder-is-a-file", may_fail=_WRITES)
def is_a_file(run: Run) -> None:
    (run.folder / "file").write_text("mine")
    run.trainer(logger=Named(run.notes, str(run.folder / "file"))).fit(Deep(), varied())


@kind("log-folder-is-remote", core=True)
def remote(run: Run) -> None:
    run.trainer(logger=Named(run.notes, "memory://bucket/run"), max_epochs=2).fit(Deep(), varied())


@kind("log-folder-cannot-be-reached", may_fail=(*_WRITES, "copy"))
def unknown_storage(run: Run) -> None:
    run.trainer(logger=Named(run.notes, "nothing://bucket/run")).fit(Deep(), varied())


@kind("session-file-is-a-fifo", may_fail=_WRITES, core=True)
def fifo(run: Run) -> None:
    folder = run.folder / "logs"
    (folder / "own" / "1").mkdir(parents=True)
    for name in ("perf_session.json", "perf_report.html"):
        os.mkfifo(folder / "own" / "1" / name)
    run.trainer(logger=Named(run.notes, str(folder))).fit(Deep(), varied())


@kind("session-file-is-a-folder", may_fail=_WRITES)
def is_a_folder(run: Run) -> None:
    for name in ("perf_session.json", "perf_report.html"):
        (run.folder / "logs" / "own" / "1" / name).mkdir(parents=True)
    run.trainer(logger=Named(run.notes, str(run.folder / "logs"))).fit(Deep(), varied())


_NEW_MOUNTS, _RECURSIVE_PRIVATE, _READ_ONLY_REMOUNT = 0x00020000, 0x4000 | 0x40000, 0x20 | 1


def mount_tmpfs(folder: Path, options: str) -> Any:
    """Mount a small file system for this process alone, or skip the kind."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir()
    is_mounted = (
        libc.unshare(_NEW_MOUNTS) == 0
        and libc.mount(b"none", b"/", None, _RECURSIVE_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, options.encode()) == 0
    )
    if not is_mounted:
        raise SkipKind("no file system can be mounted here")
    return libc


@kind("small-file-system", may_fail=_WRITES)
def small_file_system(run: Run) -> None:
    folder = run.folder / "small"
    mount_tmpfs(folder, "size=64k")
    logger = CSVLogger(folder, name="", version="", flush_logs_every_n_steps=1)
    model = Deep()
    run.trainer(logger=logger, log_every_n_steps=2, max_epochs=3).fit(model, varied(), varied(2))
    (folder / "mine.bin").write_bytes(b"x" * 16_000)  # there is still room for the user's own


@kind("full-file-system", may_fail=_WRITES, core=True)
def full_file_system(run: Run) -> None:
    folder = run.folder / "small"
    mount_tmpfs(folder, "size=64k")
    (folder / "mine.bin").write_bytes(b"x" * 48_000)
    logger = CSVLogger(folder, name="", version="", flush_logs_every_n_steps=1)
    run.attempt(run.trainer(logger=logger, log_every_n_steps=2, max_epochs=3).fit, Deep(), varied(), varied(2))


@kind("read-only-folder", may_fail=_WRITES)
def read_only(run: Run) -> None:
    folder = run.folder / "fixed"
    libc = mount_tmpfs(folder, "size=1m")
    if libc.mount(b"none", str(folder).encode(), None, _READ_ONLY_REMOUNT, None) != 0:
        raise SkipKind("no file system can be made read-only here")
    run.trainer(logger=Named(run.notes, str(folder))).fit(Deep(), varied())
    run.trainer(default_root_dir=folder).fit(Tiny(), varied())
