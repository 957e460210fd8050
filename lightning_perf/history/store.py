"""Read and write the history's file: SQLite in the user's state folder, one row per run.

Each call opens and closes the file, because a connection must not be inherited by forked loader workers. Writers wait
for one another at most ``PATIENCE_S``. A saved run stays saved if its process is killed.
"""

import contextlib
import logging
import os
import sqlite3
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.errors import SessionError
from lightning_perf.records import SCHEMA_VERSION, Record, Session, from_json
from lightning_perf.records.files import NETWORK_FILE_SYSTEMS, mount_of, require_free_space
from lightning_perf.records.remote import any_path
from lightning_perf.stats.comparison import typical_step_s

from .entry import key_of, reduced

VARIABLE = "LIGHTNING_PERF_HISTORY"
SCHEMA = 1
MAX_RUNS = 10_000
"""Runs kept; older ones are dropped. About 7 KB each."""

PATIENCE_S = 0.5

_COLUMNS = "id, key, started_at, status, model, n_steps, step_s, verdict, branch, commit_id"
_TABLE = f"""
create table if not exists runs (
  id text primary key, key text not null, started_at text not null, status text not null, model text,
  n_steps integer not null, step_s real, verdict text, branch text, commit_id text, session blob not null
);
create index if not exists runs_of_key on runs (key, started_at);
create index if not exists listed_runs on runs (started_at, {_COLUMNS.replace(", started_at", "")});
"""
_MAGIC = b"SQLite format 3\0"  # https://www.sqlite.org/fileformat2.html#magic_header_string
_UNREADABLE = ("malformed", "not a database", "encrypted", "no such table", "no such column")

_log = logging.getLogger("lightning_perf")


class Row(Record, frozen=True, kw_only=True):
    """One run in a list.

    Attributes:
        key: Equal for runs of the same training.
        n_steps: Steady steps.
        step_s: Typical seconds per step; None without steady steps.
        verdict: Code of the verdict's finding, else its category.
    """

    id: str
    key: str
    started_at: str
    status: str
    model: str | None
    n_steps: int
    step_s: float | None
    verdict: str
    branch: str | None
    commit_id: str | None


def default_file() -> Path | None:
    """Return the file of the history; None if it is switched off, no local file, or if the user has no home."""
    given = os.environ.get(VARIABLE, "").strip()
    if given.lower() in ("off", "0", "false", "no"):
        return None
    if given:
        place = any_path(os.path.expanduser(given))
        if isinstance(place, Path) and not place.is_dir() and not _is_of_others(place):
            return place
        _log.warning("PerfDoctor keeps no history: %s is %s; expected a local file that is new, or a history.",
                     VARIABLE, place)  # fmt: skip
        return None
    home = Path(os.path.expanduser("~"))
    usual = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Application Support"}
    bases = Path(os.environ.get("XDG_STATE_HOME", "")), usual.get(sys.platform, home / ".local" / "state")
    # Relative paths do not count: https://specifications.freedesktop.org/basedir-spec/latest/
    return next((base / "lightning-perf" / "history.db" for base in bases if base.is_absolute()), None)


def _is_of_others(file: Path) -> bool:
    """Return whether the file exists and is no SQLite database: it is the user's own and must not be renamed."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_MAGIC))
    except OSError:
        return False
    return start not in (b"", _MAGIC)


class History:
    """The runs in one file, made with the first; methods raise ``OSError`` or ``sqlite3.Error`` if it is unusable."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def save(self, session: Session) -> None:
        """Save a run, or its newer state."""
        part = reduced(session)
        provenance, model, steady = part.provenance, part.settings.model, part.steady
        content = zlib.compress(msgspec.json.encode(part))
        require_free_space(self.file.parent, 2 * len(content))
        values = (
            part.run.id,
            key_of(part),
            part.run.started_at,
            part.run.status,
            model.class_name if model is not None else None,
            steady.n_steps if steady is not None else 0,
            typical_step_s(part),
            part.verdict.code or part.verdict.category,
            provenance.branch if provenance is not None else None,
            provenance.commit if provenance is not None else None,
            content,
        )
        with self._open(is_writer=True) as database, database:
            database.execute(f"insert or replace into runs ({_COLUMNS}, session) values ({','.join('?' * 11)})", values)
            database.execute(
                "delete from runs where started_at < (select started_at from runs order by started_at desc limit 1 "
                "offset ?)", (MAX_RUNS - 1,)
            )  # fmt: skip

    def same_training(self, session: Session, n: int, *, branch: str = "") -> list[Session]:
        """Return the last ``n`` runs of the same training before this one that have steady steps, in order of time.

        ``branch`` selects a branch, or commits with this prefix; empty for all.
        """
        where = "key = ? and id != ? and started_at <= ? and n_steps >= 1"
        values: list[Any] = [key_of(session), session.run.id, session.run.started_at]
        if branch:
            where += " and (branch = ? or substr(commit_id, 1, ?) = ?)"
            values += [branch, len(branch), branch]
        return self._sessions(f"where {where} order by started_at desc, rowid desc limit ?", [*values, n])[::-1]

    def find(self, start: str) -> Session:
        """Return the newest run whose id begins or ends with a text; raise ``SessionError`` without one."""
        found = self._sessions(
            "where substr(id, 1, ?) = ? or substr(id, -max(?, 1)) = ? order by started_at desc, rowid desc limit 1",
            [len(start), start, len(start), start],
        )
        if not found:
            raise SessionError(f"{self.file} has no run {start!r}; lightning-perf history list shows them")
        return found[0]

    def rows(self, n: int | None = None) -> list[Row]:
        """Return the runs, newest first, at most ``n``."""
        with self._open() as database:
            found = database.execute(
                f"select {_COLUMNS} from runs order by started_at desc, rowid desc limit ?", [-1 if n is None else n]
            ).fetchall()
        names = Row.__struct_fields__
        return [Row(**dict(zip(names, values, strict=True))) for values in found]

    def prune(self, keep: int) -> int:
        """Delete all runs but the newest ``keep``; return how many were deleted."""
        with self._open() as database:
            with database:
                n = database.execute(
                    "delete from runs where rowid not in (select rowid from runs order by started_at desc limit ?)",
                    [keep],
                ).rowcount
            database.execute("vacuum")
        return n

    def _sessions(self, query: str, values: Sequence[Any]) -> list[Session]:
        with self._open() as database:
            found = database.execute(f"select id, session from runs {query}", values).fetchall()
        sessions = []
        for name, content in found:
            with contextlib.suppress(SessionError, msgspec.DecodeError, zlib.error):  # written by a newer version
                sessions.append(_session(zlib.decompress(content), name))
        return sessions

    @contextlib.contextmanager
    def _open(self, is_writer: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file; rename it first if it is broken."""
        try:
            database = self._connect(is_writer)
        except sqlite3.DatabaseError as error:
            if not _is_broken(error):
                raise
            self._rename(error)
            database = self._connect(is_writer)
        try:
            yield database
        except sqlite3.DatabaseError as error:
            if _is_broken(error):
                database.close()
                self._rename(error)
            raise
        finally:
            database.close()

    def _connect(self, is_writer: bool) -> sqlite3.Connection:
        if not self.file.exists():
            if not is_writer:
                return _prepared(sqlite3.connect(":memory:"))
            self.file.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.file, timeout=PATIENCE_S)
        try:
            (version,) = database.execute("pragma user_version").fetchone()
            if version > SCHEMA:
                return self._file_of_this_version(version)._connect(is_writer)
            if version < SCHEMA:
                has_tables = database.execute("select 1 from sqlite_master limit 1").fetchone()
                # Another process may have made the history since the version was read.
                if has_tables and database.execute("pragma user_version").fetchone() == (version,):
                    raise sqlite3.OperationalError(f"{self.file} is the database of another program")
                _execute_waiting(database, f"pragma journal_mode = {_journal_mode(self.file.parent)}")
                _prepared(database)
            database.execute("pragma synchronous = normal")
        except BaseException:
            database.close()
            raise
        return database

    def _file_of_this_version(self, version: int) -> "History":
        """Return the history in a file for this version; the usual file, of a newer version, stays as it is."""
        own = History(self.file.with_name(f"{self.file.stem}-v{SCHEMA}{self.file.suffix}"))
        if not own.file.exists():
            _log.warning("PerfDoctor's history %s is of a newer version (%d); this one uses %s.",
                         self.file, version, own.file.name)  # fmt: skip
        return own

    def _rename(self, error: Exception) -> None:
        """Rename a broken file, which stays for the user."""
        if self._is_intact():  # another process has replaced it
            return
        stamp = f"broken-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.file, self.file.with_name(f"{self.file.name}.{stamp}"))
            _log.warning("PerfDoctor's history %s cannot be read (%s); it was renamed to %s.%s.",
                         self.file, error, self.file.name, stamp)  # fmt: skip
        for end in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.file}{end}", f"{self.file}.{stamp}{end}")

    def _is_intact(self) -> bool:
        try:
            with contextlib.closing(sqlite3.connect(self.file, timeout=PATIENCE_S)) as database:
                return bool(database.execute("pragma quick_check(1)").fetchone() == ("ok",))
        except sqlite3.DatabaseError:
            return False


def _is_broken(error: sqlite3.DatabaseError) -> bool:
    return any(sign in str(error) for sign in _UNREADABLE)


def _session(content: bytes, name: str) -> Session:
    """Return a saved session without validating it, which would take ten times as long."""
    session = msgspec.json.decode(content, type=Session)
    return session if session.schema_version == SCHEMA_VERSION else from_json(content, f"run {name}")


def _prepared(database: sqlite3.Connection) -> sqlite3.Connection:
    database.executescript(f"begin immediate; {_TABLE} pragma user_version = {SCHEMA}; commit;")
    return database


def _execute_waiting(database: sqlite3.Connection, statement: str) -> None:
    """Execute a statement; SQLite itself does not wait for this one while another process has the file open."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            database.execute(statement)
            return
        except sqlite3.OperationalError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.01)


def _journal_mode(folder: Path) -> str:
    """Return ``wal``, or ``delete`` on a network disk, where processes of several hosts share no memory for WAL."""
    mount = mount_of(Path(os.path.realpath(folder)))
    kind = "" if mount is None else mount.fstype
    return "delete" if kind in NETWORK_FILE_SYSTEMS or kind.startswith(("nfs", "fuse.")) else "wal"
