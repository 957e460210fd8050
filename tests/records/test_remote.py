"""Sessions and traces at URLs that fsspec knows, here in its memory."""

import errno
import uuid
from pathlib import Path

import fsspec
import msgspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from reports.sessions import starved

from lightning_perf import load, traces
from lightning_perf.errors import SessionError, TraceError
from lightning_perf.records import SESSION_FILE, load_run
from lightning_perf.records.remote import RemotePath, any_path, local_file

from .test_merge import save, session

TRACE = Path(__file__).parents[1] / "traces" / "fixtures" / "cpu-plain.json.gz"


@pytest.fixture
def folder() -> RemotePath:
    return RemotePath(f"memory://{uuid.uuid4().hex}/run")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3://bucket/run", RemotePath("s3://bucket/run")),
        (Path("s3://bucket/run"), RemotePath("s3://bucket/run")),
        ("memory://run/", RemotePath("memory://run/")),
        ("hdfs:///user/run", RemotePath("hdfs:///user/run")),
        ("simplecache::s3://bucket/run", RemotePath("simplecache::s3://bucket/run")),
        ("unknown://host/run", RemotePath("unknown://host/run")),
        ("file:///tmp/run", Path("/tmp/run")),
        (Path("file:///tmp/run"), Path("/tmp/run")),
        ("runs/version_0", Path("runs/version_0")),
        ("C:/runs", Path("C:/runs")),
        ("12:30/run", Path("12:30/run")),
        (Path("lr:/0.1"), Path("lr:/0.1")),
    ],
)
def test_path_is_remote_only_for_urls_of_a_storage(given: str | Path, meant: Path | RemotePath) -> None:
    assert any_path(given) == meant


def test_parts_of_a_remote_path_are_those_of_its_url() -> None:
    file = RemotePath("s3://bucket/run/perf_session.json")
    assert (file.name, file.stem, file.suffix) == ("perf_session.json", "perf_session", ".json")
    assert file.parent == RemotePath("s3://bucket/run")
    assert file.with_name("x.json") == RemotePath("s3://bucket/run/x.json")
    assert RemotePath("memory://a").parent / "b" == RemotePath("memory://b")
    assert RemotePath("s3://bucket/run/") / "a" == RemotePath("s3://bucket/run/a")


def test_session_is_read_from_the_url_it_was_saved_to(folder: RemotePath) -> None:
    saved = starved().save(folder.url)
    assert saved == folder / SESSION_FILE
    assert load(str(saved)) == load(folder.url) == load_run(folder.url) == starved()


def test_session_of_another_run_is_kept_at_a_url(folder: RemotePath) -> None:
    first = starved()
    second = msgspec.structs.replace(first, run=msgspec.structs.replace(first.run, id="second"))
    for one in (first, second, second):
        one.save(folder)
    assert load(folder) == second
    assert load(folder / f"perf_session.{first.run.id}.json") == first
    assert len(folder.glob("*")) == 2


def test_sessions_of_ranks_are_merged_at_a_url(folder: RemotePath) -> None:
    for rank in (1, 2):
        save(folder, session(rank))
    assert [one.rank for one in load_run(folder).ranks.summaries] == [1, 2]
    save(folder, session(0))
    assert [one.rank for one in load_run(folder).ranks.summaries] == [0, 1, 2]


def test_files_are_found_in_a_folder_whose_name_has_brackets(folder: RemotePath) -> None:
    file = folder / "lr=[0.1]" / SESSION_FILE
    starved().save(file)
    assert file.parent.glob("*.json") == [file]


def test_load_names_what_is_there_when_a_remote_folder_has_no_session_of_its_own(folder: RemotePath) -> None:
    starved().save(folder / "version_0")
    with pytest.raises(SessionError, match=f"there is {folder.url}/version_0/{SESSION_FILE}"):
        load(folder)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nothing://host/run", "ValueError: Protocol not known: nothing"),
        ("memory://no/run", "No such file or directory"),
    ],
)
def test_load_says_what_cannot_be_read(url: str, reason: str) -> None:
    for read in (load, load_run):
        with pytest.raises(SessionError, match=f"cannot read a session from {url}: {reason}"):
            read(url)


def test_errors_of_a_storage_are_os_errors(folder: RemotePath, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(OSError, match="RuntimeError: no credentials") as raised:
        folder.write_bytes(b"")
    assert raised.value.errno == errno.EIO
    with pytest.raises(SessionError, match="no credentials"):
        starved().save(folder)


def test_folders_are_created_where_they_are_real(tmp_path: Path) -> None:
    class Disk(LocalFileSystem):
        protocol = "disk"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("disk://")

    fsspec.register_implementation("disk", Disk, clobber=True)
    (tmp_path / "file").write_bytes(b"mine")
    RemotePath(f"disk://{tmp_path}/a/b/copy").upload(tmp_path / "file")
    assert starved().save(f"disk://{tmp_path}/c/d").read_bytes() == (tmp_path / "c" / "d" / SESSION_FILE).read_bytes()
    assert (tmp_path / "a" / "b" / "copy").read_bytes() == b"mine"


def test_traces_are_analyzed_at_a_url(folder: RemotePath) -> None:
    (folder / "sub" / TRACE.name).write_bytes(TRACE.read_bytes())
    (folder / "sub" / "note.txt").write_bytes(b"mine")
    assert traces.analyze_many([folder.url]) == traces.analyze_many([TRACE])
    assert traces.analyze(f"{folder.url}/sub/{TRACE.name}") == traces.analyze(TRACE)
    with pytest.raises(TraceError, match="does not exist"):
        traces.analyze_many([f"{folder.url}/other"])
    with pytest.raises(TraceError, match=f"Cannot read {folder.url}/other.json"):
        traces.read(f"{folder.url}/other.json")


def test_local_copy_of_a_remote_file_is_removed(folder: RemotePath) -> None:
    (folder / "file.json").write_bytes(b"{}")
    with local_file(folder / "file.json") as file:
        assert file.read_bytes() == b"{}"
    assert not file.exists()
