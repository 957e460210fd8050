"""A real TensorBoard on a free port of this machine, and a real training for it to show."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from trainer.models import Sleeps, Tiny, loader

from lightning_perf import PerfDoctor
from lightning_perf.records import Session

START_S = 90.0


class Board:
    """A running TensorBoard.

    Attributes:
        address: Where it answers.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.tab = f"{address}/data/plugin_entry.html?name=perfdoctor"

    def json(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=30) as response:
            return json.load(response)


@contextlib.contextmanager
def tensorboard(logdir: Path, log: Path) -> Iterator[Board]:
    """Starts ``tensorboard --logdir``; ends it afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1",
               "--port", str(port), "--reload_interval", "2"]  # fmt: skip
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
        try:
            board = Board(f"http://127.0.0.1:{port}")
            _await(board, process, log)
            yield board
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(board: Board, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            board.json("/data/environment")
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"TensorBoard did not start: {log.read_text(errors='replace')[-2000:]}")


class SlowAfterBatch(Callback):
    """A callback that dawdles."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        time.sleep(0.01)


def fit(folder: Path, name: str, n_batches: int = 40) -> Session:
    """Train on the CPU with PerfDoctor and the TensorBoard logger: a slow loader, a slow callback and one window."""
    doctor = PerfDoctor(schedule=(12, 1, 3, 1), reports=("tensorboard", "json"), ceilings=False)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=TensorBoardLogger(str(folder), name=name, version=""),
        callbacks=[doctor, SlowAfterBatch()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Tiny(), loader(n_batches, Sleeps(fetch=0.015)))
    assert doctor.session is not None
    return doctor.session
