"""The child process of an automatic probe changes nothing outside."""

from __future__ import annotations

import _imp
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lightning_perf.probes.loader import stages
from lightning_perf.probes.loader.child import Reporter
from lightning_perf.probes.loader.guard import guard, landlock_version
from lightning_perf.probes.loader.prober import LoaderProber

from .planted import Plain
from .test_child import ended

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")
needs_landlock = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")

Act = Callable[[Path], object]


def guarded(act: Act, folder: Path, scratch: Path | None = None) -> tuple[bytes, str]:
    """Return the result of an act in a guarded child, and why the child ended early."""

    def work(report: Reporter) -> None:
        guard(report, scratch or folder / "empty")
        try:
            act(folder)
            report(b"done")
        except OSError:
            report(b"refused")

    return ended(work)


ACTS: dict[str, Act] = {
    "open": lambda folder: (folder / "file").open("w"),
    "append": lambda folder: (folder / "file").open("a"),
    "os.open": lambda folder: os.open(folder / "file", os.O_RDWR),
    "remove": lambda folder: (folder / "file").unlink(),
    "rename": lambda folder: (folder / "file").rename(folder / "other"),
    "mkdir": lambda folder: (folder / "new").mkdir(),
    "rmdir": lambda folder: (folder / "empty").rmdir(),
    "chmod": lambda folder: (folder / "file").chmod(0o600),
    "temporary file": lambda folder: tempfile.mkstemp(dir=folder),
    "database": lambda folder: sqlite3.connect(folder / "file"),
    "connection": lambda folder: socket.create_connection(("127.0.0.1", 9)),
    "program": lambda folder: subprocess.run(["true"], check=False),
    "shell": lambda folder: os.system("true"),
    "signal": lambda folder: os.kill(os.getppid(), signal.SIGCONT),
    "fork": lambda folder: os.fork() or os._exit(0),
    "pipe": lambda folder: (folder / "pipe").open("rb"),
    "lock": lambda folder: fcntl.flock((folder / "file").open("rb"), fcntl.LOCK_EX),
    "library": lambda _: ctypes.CDLL(None),
    "function of a library": lambda _: LIBC.sem_open,
    "code in C": lambda _: _imp.create_dynamic(SimpleNamespace(name="planted", origin="planted.so")),
}
LIBC = ctypes.CDLL(None)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # not in /dev/shm, where workers may write
        folder = Path(name)
        (folder / "file").write_text("mine")
        (folder / "empty").mkdir()
        os.mkfifo(folder / "pipe")
        yield folder


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_child_is_ended_with_a_reason_when_it_is_about_to_change_something(act: Act, folder: Path) -> None:
    before = sorted(folder.iterdir())
    results, failure = guarded(act, folder)
    assert results == b""
    assert failure.startswith("an automatic probe may not ")
    assert sorted(folder.iterdir()) == before
    assert (folder / "file").read_text() == "mine"


def test_no_block_of_the_users_is_unwound_when_a_child_is_stopped(folder: Path) -> None:
    def act(folder: Path) -> None:
        try:
            (folder / "file").open("x")  # made by the training
        finally:
            os.remove(folder / "file")

    assert "for writing" in guarded(act, folder)[1]
    assert (folder / "file").exists()


def test_child_reads_files_and_writes_to_its_scratch_folder_when_guarded(folder: Path, tmp_path_factory: Any) -> None:
    scratch = tmp_path_factory.mktemp("scratch")

    def act(folder: Path) -> None:
        assert (folder / "file").read_text() == "mine"
        assert os.listdir(folder)
        with open("/dev/urandom", "rb") as file:
            assert len(file.read(4)) == 4
        (scratch / "lines").write_text("seen")

    assert guarded(act, folder, scratch) == (b"done", "")
    assert (scratch / "lines").read_text() == "seen"


@pytest.mark.parametrize(
    ("flags", "arguments", "is_stopped"),
    [
        (os.O_RDWR, {}, True),
        (os.O_RDWR, {"access": mmap.ACCESS_WRITE}, True),
        (os.O_RDWR, {"access": mmap.ACCESS_READ}, False),
        (os.O_RDWR, {"access": mmap.ACCESS_COPY}, False),
        (os.O_RDONLY, {"prot": mmap.PROT_READ}, False),
    ],
)
def test_child_is_ended_when_it_maps_a_shared_file_for_writing(
    flags: int, arguments: dict[str, Any], is_stopped: bool, folder: Path
) -> None:
    descriptor = os.open(folder / "file", flags)
    try:
        results, failure = guarded(lambda _: mmap.mmap(descriptor, 4, **arguments), folder)
    finally:
        os.close(descriptor)
    assert (results == b"", "mmap" in failure) == (is_stopped, is_stopped)


def open_in_c(folder: Path) -> None:
    if OPEN(os.fsencode(folder / "file"), os.O_WRONLY | os.O_TRUNC) < 0:
        raise OSError("refused")


OPEN, UNLINK = LIBC.open, LIBC.unlink  # found before the guard, which ends the search for such functions


@needs_landlock
@pytest.mark.parametrize(
    "act",
    [
        open_in_c,
        lambda folder: UNLINK(os.fsencode(folder / "file")) == 0 or 1 / 0,
        lambda folder: torch.save({}, folder / "file"),
    ],
    ids=["open", "unlink", "torch.save"],
)
def test_kernel_refuses_when_code_in_c_is_about_to_write(act: Act, folder: Path) -> None:
    assert guarded(act, folder)[0] != b"done"
    assert (folder / "file").read_text() == "mine"


class Acting(Plain):
    """Does something each time a sample is made."""

    def __init__(self, act: Act, folder: Path) -> None:
        self.act, self.folder = act, folder

    def __getitem__(self, index: int) -> Any:
        self.act(self.folder)
        return super().__getitem__(index)


def probed(dataset: Acting, is_short: bool) -> str:
    prober = LoaderProber(10.0, extent="short" if is_short else "full")
    try:
        record = prober.start(DataLoader(dataset, batch_size=4)) or prober.wait()
    finally:
        prober.close()
    return record.reason


def test_writing_ends_a_probe_when_it_is_automatic(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages._Stages, "_measure_curve", lambda *_: None)
    monkeypatch.setattr(stages._Stages, "_time_transport", lambda *_: None)
    writing = Acting(lambda folder: (folder / "cache").write_text("half"), folder)
    assert "/cache' for writing" in probed(writing, is_short=True)
    assert not (folder / "cache").exists()
    assert "for writing" not in probed(writing, is_short=False)
    assert (folder / "cache").exists()


@pytest.mark.usefixtures("short_stages")
def test_batches_come_from_workers_when_the_child_is_guarded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "candidates", lambda *_: [0, 1])
    prober = LoaderProber(30.0, extent="short")
    try:
        record = prober.start(DataLoader(Plain(), batch_size=4)) or prober.wait()
    finally:
        prober.close()
    assert [point.num_workers for point in record.curve] == [0, 1], record.reason
