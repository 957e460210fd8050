"""Files written during a training: complete, with disk space left, and only regular files."""

import errno
import os
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from reports.sessions import healthy

from lightning_perf.errors import SessionError, TraceError
from lightning_perf.records import SESSION_FILE, load, load_run
from lightning_perf.records.files import (
    RESERVE_BYTES,
    SpaceCheckedFile,
    read_regular,
    require_free_space,
    whole_file,
    write_whole,
)
from lightning_perf.tensorboard_plugin.catalogue import Catalogue
from lightning_perf.traces import analyze

Usage = namedtuple("Usage", "total used free")
posix_only = pytest.mark.skipif(os.name == "nt", reason="pipes and sockets with names are POSIX")


def disk_with(free_bytes: int, total_bytes: int = 2**40) -> Callable[[object], Usage]:
    """A ``disk_usage`` that reports this."""
    return lambda path: Usage(total_bytes, total_bytes - free_bytes, free_bytes)


def entries(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


# -- free space ------------------------------------------------------------


def test_require_free_space_raises_when_the_reserve_would_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", disk_with(RESERVE_BYTES + 10))
    require_free_space(tmp_path, 10)
    with pytest.raises(OSError, match="128 MiB would stay free") as raised:
        require_free_space(tmp_path, 11)
    assert raised.value.errno == errno.ENOSPC


def test_require_free_space_asks_the_nearest_parent_when_the_folder_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Path] = []

    def usage(path: Path) -> Usage:
        places.append(path)
        if path != tmp_path:
            raise FileNotFoundError(path)
        return Usage(1, 1, 0)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(OSError, match="128 MiB"):
        require_free_space(tmp_path / "a" / "b", 0)
    assert places == [tmp_path / "a" / "b", tmp_path / "a", tmp_path]


@pytest.mark.parametrize("folder", ["s3://bucket/logs", "zero\0byte", "x" * 300])
def test_require_free_space_passes_when_the_free_space_is_unknown(folder: str) -> None:
    require_free_space(folder, 2**60)


def test_require_free_space_passes_when_the_disk_reports_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", disk_with(0, total_bytes=0))
    require_free_space(tmp_path, 1)


def test_large_file_leaves_nothing_behind_when_room_runs_out_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "large"
    target.write_bytes(b"old")
    free = [RESERVE_BYTES + 20 * 2**20]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk_with(free[0])(path))
    n_written = 0
    with pytest.raises(OSError, match="128 MiB"), whole_file(target) as file:  # noqa: PT012 - how far it came counts
        checked = SpaceCheckedFile(file, tmp_path)
        for _ in range(100):
            checked.write(bytes(2**20))
            n_written += 1
            free[0] -= 2**20
    assert 1 <= n_written <= 20
    assert free[0] >= RESERVE_BYTES
    assert entries(tmp_path) == ["large"]
    assert target.read_bytes() == b"old"


def test_write_whole_accepts_a_name_as_long_as_the_system_does(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 250)
    write_whole(target, b"content")
    assert target.read_bytes() == b"content"


# -- other things than files ------------------------------------------------------------


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def make_link_to_device(path: Path) -> None:
    path.symlink_to(os.devnull)


def make_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)


SPECIAL = [make_pipe, make_link_to_pipe, make_link_to_device, make_socket]


@posix_only
@pytest.mark.parametrize("make", SPECIAL)
def test_reading_raises_when_the_file_is_a_pipe_device_or_socket(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / SESSION_FILE
    make(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(path)
    for read in (load, load_run):
        with pytest.raises(SessionError, match=r"perf_session\.json.*not a regular file"):
            read(path)
    with pytest.raises(TraceError, match="not a regular file"):
        analyze(path)


@posix_only
@pytest.mark.parametrize("make", SPECIAL)
def test_saving_leaves_the_target_when_it_is_a_pipe_device_or_socket(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / SESSION_FILE
    make(path)
    before = entries(tmp_path)
    with pytest.raises(OSError, match="not a regular file"):
        write_whole(path, b"content")
    with pytest.raises(SessionError, match="move it away or choose another out_dir"):
        healthy().save(tmp_path)
    assert entries(tmp_path) == before
    assert not path.is_file()


@posix_only
def test_tab_lists_the_session_with_an_error_when_it_is_a_pipe(tmp_path: Path) -> None:
    make_pipe(tmp_path / SESSION_FILE)
    found = Catalogue([("", str(tmp_path))]).entries(timeout_s=30)
    (entry,) = found.values()
    assert "named pipe" in entry.error


def test_read_regular_follows_a_link_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"


@pytest.mark.parametrize("name", ["x" * 300, "y" * 5000, "zero\0byte", "file/below"])
def test_session_names_the_path_when_it_cannot_be_one(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    for read in (load, load_run):
        with pytest.raises(SessionError, match="cannot read a session from"):
            read(tmp_path / name)
    with pytest.raises(SessionError, match="choose another out_dir"):
        healthy().save(tmp_path / name)
    with pytest.raises(TraceError, match="Cannot read"):
        analyze(tmp_path / name)


# -- two runs in one folder ------------------------------------------------------------


def test_folder_holds_each_run_once_when_two_runs_save_by_turns(tmp_path: Path) -> None:
    one = healthy()
    other = msgspec.structs.replace(one, run=msgspec.structs.replace(one.run, id="other"))
    for _ in range(2):
        one.save(tmp_path)
        other.save(tmp_path)
    assert entries(tmp_path) == [f"perf_session.{one.run.id}.json", SESSION_FILE]
    assert load(tmp_path).run.id == "other"
