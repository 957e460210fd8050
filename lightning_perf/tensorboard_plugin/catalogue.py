"""Find sessions, and profiler traces without a session, in log directories."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from lightning_perf.records import RANKS_FOLDER, SESSION_FILE
from lightning_perf.records.files import as_text, read_regular
from lightning_perf.records.session import SCHEMA_VERSION

TRACE_ENDINGS = (".pt.trace.json", ".pt.trace.json.gz")
"""File names of ``torch.profiler.tensorboard_trace_handler`` and PerfDoctor."""

MIN_INTERVAL_S = 3.0
"""Shortest time between searches; the page polls every five seconds."""

_PAUSE_FACTOR = 10
"""Shortest pause between searches, as a multiple of their duration: slow disks are searched less often."""

_STEM = SESSION_FILE.removesuffix(".json")
_MAX_FOLDERS = 20_000
"""Folders searched; the page shows a note if there are more."""


class Head(msgspec.Struct, frozen=True):
    """The fields of a session that the list of runs needs."""

    class Run(msgspec.Struct, frozen=True):
        id: str
        stage: str = ""
        status: str = ""
        started_at: str = ""

    class Window(msgspec.Struct, frozen=True):
        file: str | None = None

    class Trial(msgspec.Struct, frozen=True):
        id: str = ""

    class Settings(msgspec.Struct, frozen=True):
        class Model(msgspec.Struct, frozen=True):
            class_name: str = ""
            n_trainable: int | None = None

        class Loader(msgspec.Struct, frozen=True):
            stage: str = ""
            dataset_class: str | None = None

        model: Model | None = None
        loaders: tuple[Loader, ...] = ()

    run: Run
    schema_version: int = 1
    windows: tuple[Window, ...] = ()
    trials: tuple[Trial, ...] = ()
    settings: Settings = Settings()

    @property
    def training(self) -> tuple[str, int | None, tuple[str | None, ...]] | None:
        """Return what is the same in all runs of one training: model, its size, and dataset; None without a model."""
        model = self.settings.model
        if model is None:
            return None
        datasets = tuple(each.dataset_class for each in self.settings.loaders if each.stage == "train")
        return model.class_name, model.n_trainable, datasets


# Created at import: two threads that decode a type for the first time at once crash the interpreter.
_decode_head = msgspec.json.Decoder(Head).decode


class Entry(msgspec.Struct, frozen=True):
    """A run that users can choose in the tab.

    Attributes:
        id: Id in requests; never used as a path.
        label: Text in the list of runs.
        kind: ``session`` (a file), ``traces`` (a folder of traces without a session) or ``summary`` (in an event file).
        stamp: Changes whenever the content changes.
        path: The session's file, or the folder of the traces; empty for a summary.
        files: The traces, by name.
        head: The session's first fields; None if the file cannot be read, and for other kinds.
        error: Why the file cannot be read.
        where: Run and tag of a summary.
    """

    id: str
    label: str
    kind: str
    stamp: str
    path: str = ""
    files: tuple[str, ...] = ()
    head: Head | None = None
    error: str = ""
    where: tuple[str, str] = ("", "")

    @property
    def changed_ns(self) -> int:
        """Return when the files changed, in nanoseconds since 1970."""
        return int(self.stamp.partition("-")[0] or "0", 16)

    @property
    def started_s(self) -> float:
        """Return when the run started, in seconds since 1970; the time of its files if that is unknown."""
        try:
            text = self.head.run.started_at if self.head is not None else ""
            started = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read Z
        except ValueError:
            return self.changed_ns * 1e-9
        return (started if started.tzinfo else started.replace(tzinfo=timezone.utc)).timestamp()


class Catalogue:
    """A cached search of log directories, in a background thread.

    Args:
        roots: Name and folder of each log directory; the name is empty if there is only one.

    Attributes:
        is_complete: Whether a search has finished.
        is_cut: Whether the search left out folders because there are too many.
    """

    def __init__(self, roots: list[tuple[str, str]]) -> None:
        self._roots = roots
        self._lock = threading.Lock()
        self._search: threading.Thread | None = None
        self._next_search_s = 0.0
        self._entries: dict[str, Entry] = {}
        self._heads: dict[tuple[str, str], tuple[Head | None, str]] = {}  # by path and stamp
        self.is_complete = False
        self.is_cut = False

    def entries(self, timeout_s: float) -> dict[str, Entry]:
        """Return the entries of the last search by id; start a new search if it is too old.

        Wait for a running search for ``timeout_s``.
        """
        with self._lock:
            if self._search is None and time.monotonic() >= self._next_search_s:
                self._search = threading.Thread(target=self._find_entries, name="perfdoctor-catalogue", daemon=True)
                self._search.start()
            search = self._search
        if search is not None:
            search.join(timeout_s)
        return self._entries

    def _find_entries(self) -> None:
        started_s = published_s = time.monotonic()
        try:
            found: dict[str, Entry] = {}
            self.is_cut = False
            for name, root in self._roots:
                for entry in self._entries_below(name, root):
                    found[entry.id] = entry
                    # During the first search, publish what has been found so far.
                    if not self.is_complete and time.monotonic() - published_s > 0.1:
                        self._entries, published_s = dict(found), time.monotonic()
            self._entries = found
            known = {(entry.path, entry.stamp) for entry in found.values()}
            self._heads = {key: head for key, head in self._heads.items() if key in known}
        finally:
            now = time.monotonic()
            with self._lock:
                self.is_complete, self._search = True, None
                self._next_search_s = now + max(MIN_INTERVAL_S, _PAUSE_FACTOR * (now - started_s))

    def _entries_below(self, name: str, root: str) -> Iterator[Entry]:
        for n, (folder, inner, files) in enumerate(os.walk(root)):
            if n >= _MAX_FOLDERS:
                self.is_cut = True
                return
            has_ranks = RANKS_FOLDER in inner
            inner[:] = sorted(each for each in inner if not each.startswith(".") and each != RANKS_FOLDER)
            below = os.path.relpath(folder, root)
            label = "/".join(filter(None, (name, "" if below == "." else below.replace(os.sep, "/"))))
            label = as_text(label or os.path.basename(os.path.abspath(root)) or "/")
            yield from self._entries_of_folder(folder, label, files, has_ranks)

    def _entries_of_folder(self, folder: str, label: str, files: list[str], has_ranks: bool) -> Iterator[Entry]:
        session_traces: set[str] = set()
        sessions = sorted(each for each in files if each.startswith(_STEM) and each.endswith(".json"))
        ranks = sorted(Path(folder, RANKS_FOLDER).glob(f"{_STEM}*.rank*.json")) if has_ranks else []
        if ranks and not sessions:  # rank 0 died before it could save
            sessions = [SESSION_FILE]
        for file in sessions:
            path = os.path.join(folder, file)
            stamp = _stamp_of([path, *(str(one) for one in ranks if one.name.startswith(f"{Path(file).stem}.rank"))])
            head, error = self._head(path, stamp)
            session_traces |= {os.path.basename(w.file) for w in (head.windows if head else ()) if w.file}
            yield Entry(
                id=f"{label}/{as_text(file)}", label=_label(label, file, head), kind="session", path=path,
                stamp=stamp, head=head, error=error,
            )  # fmt: skip
        traces = sorted(file for file in files if file.endswith(TRACE_ENDINGS) and file not in session_traces)
        if traces:
            stamp = _stamp_of([os.path.join(folder, file) for file in traces])
            yield Entry(
                id=f"{label}/traces", label=f"{label} (traces)", kind="traces", path=folder,
                stamp=f"{stamp}-{len(traces)}", files=tuple(traces),
            )  # fmt: skip

    def _head(self, path: str, stamp: str) -> tuple[Head | None, str]:
        key = (path, stamp)
        if key not in self._heads:
            try:
                head = _decode_head(read_regular(path))
                is_newer = head.schema_version > SCHEMA_VERSION
                self._heads[key] = (head, "written by a newer lightning-perf" if is_newer else "")
            except FileNotFoundError:
                return None, ""
            except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._heads[key] = (None, str(error))
        return self._heads[key]


def trial_of(entry: Entry, entries: Iterable[Entry]) -> Entry | None:
    """Return the latest trial of the same training that was made in another session; None without one."""
    if entry.head is None or entry.head.trials or entry.head.training is None:
        return None
    found = [each for each in entries if each.head is not None and each.head.trials
             and each.head.training == entry.head.training]  # fmt: skip
    return max(found, key=lambda each: each.head.run.started_at if each.head is not None else "", default=None)


def roots_of(logdir: str | None, logdir_spec: str | None = None) -> list[tuple[str, str]]:
    """Return name and folder of each log directory on this machine, from the values of TensorBoard's arguments.

    ``--logdir_spec`` is a list of ``name:folder`` or folders, separated by commas. Of several, a folder without a
    name is named by its path.
    """
    given = [("", logdir)] if logdir and "://" not in logdir else []
    listed = [one for one in (logdir_spec or "").split(",") if one and "://" not in one]
    for one in listed:
        name, colon, folder = one.partition(":")
        given.append((name, folder) if colon and name else (one if len(listed) > 1 else "", one))
    return [(name, os.path.expanduser(folder)) for name, folder in given]


def _label(label: str, file: str, head: Head | None) -> str:
    """Return the folder, with a suffix if it holds several sessions."""
    rest = file.removeprefix(_STEM).removesuffix(".json").strip("._")
    if head is not None and head.trials:
        label += " (trial)"
    if not rest:
        return label
    if head is not None and head.run.id == rest:
        return f"{label} ({head.run.stage or 'run'} {rest[:8]})"
    return f"{label} ({rest[:40]})"


def _stamp_of(paths: list[str]) -> str:
    """Return the latest modification time in nanoseconds, and the size; files with equal stamps count as unchanged."""
    newest = size = 0
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        newest, size = max(newest, stat.st_mtime_ns), size + stat.st_size
    return f"{newest:x}-{size:x}"
