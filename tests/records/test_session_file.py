import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from reports.sessions import SESSIONS, ddp, starved

import lightning_perf
from lightning_perf.errors import SessionError
from lightning_perf.records import SCHEMA_VERSION, SESSION_FILE, Session, load, load_run
from lightning_perf.records import session as session_module

GOLDEN = Path(__file__).parent / "golden" / "session_v1.json"


def other_run(session: Session, run_id: str) -> Session:
    return msgspec.structs.replace(session, run=msgspec.structs.replace(session.run, id=run_id))


def write(folder: Path, document: object) -> Path:
    file = folder / SESSION_FILE
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


@pytest.fixture
def document() -> dict[str, object]:
    loaded: dict[str, object] = json.loads(starved().to_json())
    return loaded


def holds(new: object, old: object) -> bool:
    """Return whether a document contains everything of an older one; it may have more fields."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and holds(new[key], value) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(holds, new, old))
    return type(new) is type(old) and new == old


def test_golden_session_of_schema_one_is_unchanged_when_read_and_written(tmp_path: Path) -> None:
    session = load(GOLDEN)
    assert session.schema_version == 1
    assert holds(json.loads(session.to_json()), json.loads(GOLDEN.read_text(encoding="utf-8")))
    assert load(session.save(tmp_path)) == session


def test_golden_session_fills_every_part_of_the_contract() -> None:
    document = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for part in ("epochs", "steady", "validation", "windows", "findings", "outcomes", "trials", "overhead",
                 "probes_off", "missing"):  # fmt: skip
        assert document[part], part
    for part in ("named", "fetch", "device", "outliers", "timeline", "gc_s", "is_steady"):
        assert document["steady"][part] not in (None, []), part


@pytest.mark.parametrize("name", [name for name in SESSIONS if name != "hostile"])
def test_session_is_the_same_when_saved_and_loaded(name: str, tmp_path: Path) -> None:
    session = SESSIONS[name]()
    assert load(session.save(tmp_path)) == session
    assert load(tmp_path) == session
    assert lightning_perf.load(tmp_path) == session


def test_save_makes_the_folder_and_names_the_file(tmp_path: Path) -> None:
    assert starved().save(tmp_path / "a" / "b") == tmp_path / "a" / "b" / SESSION_FILE
    assert starved().save(tmp_path / "a" / "own.json") == tmp_path / "a" / "own.json"


def test_save_writes_names_that_are_not_utf_8_without_their_other_bytes(tmp_path: Path) -> None:
    machine = msgspec.structs.replace(starved().machine, hostname="caf\udce9")
    msgspec.structs.replace(starved(), machine=machine).save(tmp_path)
    assert load(tmp_path).machine.hostname == "caf"


def test_save_replaces_the_same_run(tmp_path: Path) -> None:
    starved().save(tmp_path)
    later = msgspec.structs.replace(starved(), findings=())
    later.save(tmp_path)
    assert load(tmp_path) == later
    assert [file.name for file in tmp_path.iterdir()] == [SESSION_FILE]


def test_save_sets_the_session_of_another_run_aside(tmp_path: Path) -> None:
    other_run(ddp(), "first").save(tmp_path)
    other_run(starved(), "second").save(tmp_path)
    assert load(tmp_path) == other_run(starved(), "second")
    assert load(tmp_path / "perf_session.first.json") == other_run(ddp(), "first")


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("step", "error", "raised", "words"),
    [
        ("fsync", FULL, SessionError, r"No space left on device.*choose another out_dir"),
        ("replace", FULL, SessionError, r"No space left on device.*choose another out_dir"),
        ("fsync", KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_save_leaves_the_old_file_whole_when_it_breaks_off(
    step: str, error: BaseException, raised: type, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = starved().save(tmp_path)
    before = file.read_bytes()

    def breaking(*_: object) -> None:
        raise error

    monkeypatch.setattr(session_module.os, step, breaking)
    with pytest.raises(raised, match=words):
        msgspec.structs.replace(starved(), findings=()).save(tmp_path)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [SESSION_FILE]


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")
def test_saved_file_has_the_mode_that_the_user_asks_for(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        assert starved().save(tmp_path).stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")
def test_save_leaves_the_umask_of_other_threads_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(mask: int) -> int:
        raise AssertionError(f"umask({mask})")

    monkeypatch.setattr(session_module.os, "umask", changed)
    assert starved().save(tmp_path).exists()


@pytest.mark.parametrize("content", [b"", b'{"schema_version": 1', b"not json", b"\xff\xfe\x00", b'{"a": "\xff"}'])
def test_load_reports_incomplete_json_when_the_file_is_truncated_or_binary(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / SESSION_FILE
    file.write_bytes(content)
    with pytest.raises(SessionError, match="is not complete JSON"):
        load(file)


@pytest.mark.parametrize("cut", [1, 100, 1000, -2])
def test_load_refuses_a_session_when_its_end_is_missing(cut: int, tmp_path: Path) -> None:
    file = starved().save(tmp_path)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(SessionError, match="is not complete JSON"):
        load(file)


@pytest.mark.parametrize(
    "foreign", [[], {}, None, 3, "text", {"schema_version": 1}, {"run": {}}, {"schema_version": "1", "run": {}},
                {"schema_version": True, "run": {}}, {"schema_version": 0, "run": {}}, [{"schema_version": 1}]],
)  # fmt: skip
def test_load_reports_no_session_when_the_file_is_another(foreign: object, tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="is not a PerfDoctor session"):
        load(write(tmp_path, foreign))


def test_load_names_the_version_when_the_session_is_newer(document: dict[str, object], tmp_path: Path) -> None:
    file = write(tmp_path, {**document, "schema_version": SCHEMA_VERSION + 1})
    with pytest.raises(SessionError, match=f"schema_version {SCHEMA_VERSION + 1}.*reads up to {SCHEMA_VERSION}"):
        load(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("run", "wall_s"), "long"),
        (("run", "status"), "sleeping"),
        (("epochs", 0, "n_steps"), 1.5),
        (("steady", "step_s", "p50"), None),
        (("steady", "phases", "forward", "share"), "half"),
        (("findings", 0, "severity"), "terrible"),
        (("missing",), []),
    ],
)
def test_load_names_the_field_when_its_type_is_wrong(
    path: tuple[str | int, ...], value: object, document: dict[str, object], tmp_path: Path
) -> None:
    place: object = document
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    # msgspec writes the keys of a mapping as [...] and an index as [0] in what it calls a path.
    field = str(path[-1])
    with pytest.raises(SessionError, match=rf"is not a valid session: .*\.{field}"):
        load(write(tmp_path, document))


def test_load_names_the_field_when_a_required_one_is_missing(document: dict[str, object], tmp_path: Path) -> None:
    document["run"] = {"id": "x"}
    with pytest.raises(SessionError, match=r"missing required field `stage`.*run"):
        load(write(tmp_path, document))


def test_load_ignores_fields_that_it_does_not_know(document: dict[str, object], tmp_path: Path) -> None:
    document["weather"] = {"sun": 1}
    document["run"]["mood"] = "fine"  # type: ignore[index]
    document["findings"][0]["evidence"][0]["color"] = 3  # type: ignore[index]
    assert load(write(tmp_path, document)) == starved()


def test_load_names_the_expected_file_when_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=rf"cannot read a session from .*expected a {SESSION_FILE}"):
        load(tmp_path)


def test_load_names_what_is_there_when_a_folder_has_no_session_of_its_own(tmp_path: Path) -> None:
    for file in ("perf_session_validate.json", "version_0/perf_session.json", "version_1/other.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
    with pytest.raises(SessionError) as raised:
        load_run(tmp_path)
    assert str(tmp_path / "perf_session_validate.json") in str(raised.value)
    assert str(tmp_path / "version_0" / "perf_session.json") in str(raised.value)
    assert "version_1" not in str(raised.value)


def test_load_names_the_command_for_a_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(SessionError, match="lightning-perf analyze"):
        load(tmp_path / "trace.json")


@pytest.mark.parametrize("content", [b"mine", b"[1, 2]", b'{"schema_version": 99, "run": {}}'])
def test_save_overwrites_nothing_when_the_path_is_taken(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / SESSION_FILE
    file.write_bytes(content)
    with pytest.raises(SessionError, match="move it away or choose another out_dir"):
        starved().save(tmp_path)
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [SESSION_FILE]


def test_save_error_names_the_fix_when_the_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match=r"cannot write the session to .*choose another out_dir"):
        starved().save(tmp_path / "file" / "run")


def test_trainer_flags_come_from_the_worst_finding_and_stay_within_the_safety() -> None:
    assert starved().trainer_flags() == {"log_every_n_steps": 50}
    assert starved().loader_args() == {"num_workers": 2, "persistent_workers": True}
    with pytest.raises(SessionError, match="safety='reckless' is not one of exact, numerics, semantics"):
        starved().trainer_flags("reckless")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "statement",
    [
        "import lightning_perf; dir(lightning_perf); lightning_perf.load; lightning_perf.Session",
        "import lightning_perf.reports.console, lightning_perf.reports.tensorboard",
        "from lightning_perf.cli import app, report, rules",
    ],
)
def test_import_loads_neither_torch_nor_lightning(statement: str) -> None:
    script = f"import sys; {statement}; print([m for m in ('torch', 'lightning', 'torchmetrics') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
