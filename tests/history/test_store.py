from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import sys
import time
from pathlib import Path

import msgspec
import pytest

from lightning_perf.errors import SessionError
from lightning_perf.history import store
from lightning_perf.history.entry import reduced
from lightning_perf.history.store import SCHEMA, History, default_file

from .runs import run


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "state" / "history.db")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "lightning_perf"]


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no"])
def test_file_is_none_when_switched_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.VARIABLE, value)
    assert default_file() is None


def test_file_is_none_and_a_warning_says_why_when_a_url_or_a_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for value in ("s3://bucket/history.db", str(tmp_path)):
        monkeypatch.setenv(store.VARIABLE, value)
        assert default_file() is None
        assert f"is {value}; expected a local file" in lines(caplog)[-1]


def test_a_named_file_of_another_kind_is_neither_used_nor_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("the user's own")
    monkeypatch.setenv(store.VARIABLE, str(notes))
    assert default_file() is None
    assert "expected a local file that is new, or a history" in lines(caplog)[-1]
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_the_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "tracker.db"
    with sqlite3.connect(other) as database:
        database.execute("create table runs (run_uuid text)")
    database.close()
    before = other.read_bytes()
    for use in (lambda history: history.save(run(1)), lambda history: history.rows()):
        with pytest.raises(sqlite3.OperationalError, match="of another program"):
            use(History(other))
    assert other.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["tracker.db"]


def test_file_may_be_given_as_a_file_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.VARIABLE, "file:///runs/history.db")
    assert default_file() == Path("/runs/history.db")


def test_file_is_the_given_one_or_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "own.db"))
    assert default_file() == tmp_path / "own.db"
    monkeypatch.setenv(store.VARIABLE, "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_file() == tmp_path / "state" / "lightning-perf" / "history.db"
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # relative paths do not count
    found = default_file()
    assert found is not None
    assert found.is_absolute()


@pytest.mark.skipif(sys.platform == "win32", reason="homes are found elsewhere")
def test_a_user_without_a_home_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (store.VARIABLE, "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as in a container with an unknown user
    assert default_file() is None


def test_saved_runs_come_back_oldest_first_without_the_run_itself(history: History) -> None:
    runs = [run(n) for n in (3, 1, 2)]
    for each in runs:
        history.save(each)
    history.save(run(9, machine={"cpu_model": "another"}))
    assert [each.run.id for each in history.same_training(run(3), 5)] == ["1", "2"]
    assert history.same_training(run(4), 2) == [reduced(run(2)), reduced(run(3))]


def test_a_run_that_is_saved_again_replaces_itself(history: History) -> None:
    history.save(run(1))
    history.save(msgspec.structs.replace(run(1), run=msgspec.structs.replace(run(1).run, status="interrupted")))
    [row] = history.rows()
    assert (row.id, row.status, row.model, row.verdict, row.branch) == ("1", "interrupted", "Net", "unknown", "main")


def test_runs_of_a_branch_or_commit_are_found(history: History) -> None:
    history.save(run(1))
    history.save(run(2, provenance={"branch": "topic", "commit": "b" * 40}))
    assert [each.run.id for each in history.same_training(run(3), 5, branch="main")] == ["1"]
    assert [each.run.id for each in history.same_training(run(3), 5, branch="bbbb")] == ["2"]
    assert history.same_training(run(3), 5, branch="%") == []


def test_a_run_is_found_by_an_end_of_its_id(history: History) -> None:
    for name in ("20260101-fit-aa11", "20260102-fit-bb22"):
        history.save(run(1, id=name))
    assert history.find("aa11").run.id == "20260101-fit-aa11"
    assert history.find("20260102").run.id == "20260102-fit-bb22"
    assert history.find("").run.id == "20260102-fit-bb22"
    with pytest.raises(SessionError, match="has no run 'x'"):
        history.find("x")


def test_only_the_newest_runs_are_kept(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_RUNS", 3)
    for n in range(5):
        history.save(run(n))
    assert [row.id for row in history.rows()] == ["4", "3", "2"]
    assert history.prune(1) == 2
    assert [row.id for row in history.rows()] == ["4"]
    assert [row.id for row in history.rows(0)] == []


def test_reading_makes_no_file(history: History) -> None:
    assert history.rows() == []
    assert history.same_training(run(1), 5) == []
    assert not history.file.parent.exists()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_broken_file_is_set_aside_with_one_line(
    history: History, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    history.file.parent.mkdir()
    history.file.write_bytes(content)
    history.save(run(1))
    assert [row.id for row in history.rows()] == ["1"]
    [line] = lines(caplog)
    assert "cannot be read" in line
    [aside] = [each for each in history.file.parent.iterdir() if ".broken-" in each.name]
    assert aside.read_bytes() == content


def test_a_file_whose_pages_are_broken_is_set_aside(history: History, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(20):
        history.save(run(n))
    content = bytearray(history.file.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    history.file.write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError):
        history.save(run(30))
    history.save(run(30))
    assert [row.id for row in history.rows()] == ["30"]
    assert len(lines(caplog)) == 1


def test_a_file_that_another_process_has_replaced_stays(history: History) -> None:
    history.save(run(1))
    history._rename(sqlite3.DatabaseError("file is not a database"))
    assert [row.id for row in history.rows()] == ["1"]


def test_a_newer_file_stays_and_this_version_has_its_own(history: History, caplog: pytest.LogCaptureFixture) -> None:
    history.save(run(1))
    with sqlite3.connect(history.file) as database:
        database.execute(f"pragma user_version = {SCHEMA + 1}")
    before = history.file.read_bytes()
    for n in (2, 3):
        history.save(run(n))
    assert history.file.read_bytes() == before
    assert [row.id for row in history.rows()] == ["3", "2"]
    [line] = lines(caplog)
    assert "is of a newer version" in line


def test_a_run_of_a_newer_schema_is_left_out(history: History) -> None:
    history.save(run(1))
    history.save(msgspec.structs.replace(run(2)))
    with sqlite3.connect(history.file) as database:
        database.execute("update runs set session = x'00' where id = '2'")
    assert [each.run.id for each in history.same_training(run(3), 5)] == ["1"]


def test_saving_gives_up_when_another_process_writes(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 0.01)
    history.save(run(1))
    with sqlite3.connect(history.file) as database:
        database.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            history.save(run(2))
        assert len(history.rows()) == 1  # readers are not blocked
    database.close()


def test_nothing_is_written_when_the_disk_is_nearly_full(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: os.terminal_size((2**40, 1)) and _Usage())
    with pytest.raises(OSError, match="would stay free"):
        history.save(run(1))
    assert not history.file.exists()


class _Usage:
    total, free = 2**40, 2**20


def test_a_network_disk_has_no_wal(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_journal_mode", lambda folder: "delete")
    history.save(run(1))
    assert sqlite3.connect(history.file).execute("pragma journal_mode").fetchone() == ("delete",)


def _write(file: Path, number: int, log: Path) -> None:
    for n in range(1_000):
        name = f"{number}-{n}"
        try:
            History(file).save(run(1, n_epochs=1, steps_an_epoch=20, id=name))
        except sqlite3.OperationalError:
            continue
        with log.open("a") as opened:
            opened.write(f"{name}\n")


def test_every_run_logged_as_saved_is_there_when_writers_are_killed(history: History, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(history.file, n, tmp_path / f"log{n}")) for n in range(3)]
    for each in writers:
        each.start()
    logs = [tmp_path / f"log{n}" for n in range(3)]
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s and not all(each.exists() for each in logs):
        time.sleep(0.01)
    for each in writers:
        each.kill()
        each.join()
    names = {name for each in logs for name in each.read_text().splitlines()}
    assert names
    assert names <= {row.id for row in history.rows()}
