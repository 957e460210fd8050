"""What a forked child may do with the open files and pipes of the training."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

import pytest

from lightning_perf.probes.loader.copying import separate_descriptors

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the probe forks on Linux only")


def in_a_child(function) -> int:
    """Return the exit code of a function in a forked child."""
    pid = os.fork()
    if pid == 0:
        try:
            separate_descriptors()
            os._exit(function())
        except BaseException:  # noqa: BLE001 - the child must not return into the tests
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_pipe_is_closed_when_the_training_uses_it() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"mine")
    assert in_a_child(lambda: len(os.read(reading, 4)) + os.write(writing, b"theirs") * 0) == 0
    os.close(writing)
    assert os.read(reading, 100) == b"mine"
    os.close(reading)


@pytest.mark.parametrize("mode", ["w", "a", "r+", "w+"])
def test_file_stays_as_it_is_when_the_training_writes_it(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text("before\n")
    with path.open(mode) as file:
        file.write("mine\n")
        file.flush()
        written = path.read_text()

        def write() -> int:
            try:
                return os.write(file.fileno(), b"theirs") * 0
            except OSError:
                return 0

        assert in_a_child(write) == 0
        assert path.read_text() == written


def test_file_is_read_from_the_position_of_the_training(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"0123456789")
    with path.open("rb", buffering=0) as file:
        file.read(4)
        assert in_a_child(lambda: os.read(file.fileno(), 1)[0] - ord("4")) == 0
        assert file.read(1) == b"4"


def test_sqlite_connection_of_the_training_is_readable(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "data.db")
    connection.execute("create table samples (value)")
    connection.execute("insert into samples values (7)")
    connection.commit()
    assert in_a_child(lambda: connection.execute("select value from samples").fetchone()[0]) == 7
    connection.close()


def test_file_is_readable_when_it_was_opened_without_following_links(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"7")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    assert in_a_child(lambda: int(os.read(descriptor, 1))) == 7
    os.close(descriptor)
