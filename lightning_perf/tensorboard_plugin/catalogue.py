"""What there is to show below a log directory: sessions on disk, and profiler traces that no session tells of."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lightning_perf.records import RANKS_FOLDER, SESSION_FILE
from lightning_perf.records.files import as_text, read_regular

TRACE_ENDINGS = (".pt.trace.json", ".pt.trace.json.gz")
"""What ``torch.profiler.tensorboard_trace_handler`` and PerfDoctor write."""

FRESH_S = 3.0
"""A look at the disk is good for so long; the page asks every five seconds."""

_REST = 10
"""And for so many times as long as it took: a slow disk is left alone most of the time."""

_STEM = SESSION_FILE.removesuffix(".json")
_MOST_FOLDERS = 20_000
"""Where a log directory holds more, the rest is left out and said to be: it is probably no log directory."""

Stamp = tuple[int, int]
"""Time of change in nanoseconds and size: files that share both are taken to be the same."""


class Head(msgspec.Struct, frozen=True):
    """The few fields of a session that a list of runs needs."""

    class Run(msgspec.Struct, frozen=True):
        id: str
        stage: str = ""
        status: str = ""
        started_at: str = ""
        world_size: int = 1

    class Verdict(msgspec.Struct, frozen=True):
        category: str = ""
        code: str | None = None
        text: str = ""

    class Window(msgspec.Struct, frozen=True):
        file: str | None = None

    run: Run
    verdict: Verdict | None = None
    windows: tuple[Window, ...] = ()


# Made here: two threads that first decode a type at once crash the interpreter.
_decode_head = msgspec.json.Decoder(Head).decode


class Entry(msgspec.Struct, frozen=True):
    """One thing that can be chosen.

    Attributes:
        id: What a page names it by: never used as a path.
        label: As shown.
        kind: ``session`` (a file), ``traces`` (a folder of traces without a session) or ``summary`` (in an event file).
        stamp: Changes whenever there is something new to read.
        path: The session's file, or the folder of the traces; empty for a summary.
        files: The traces, by name.
        head: What the session's file begins to tell; None where it cannot be read, and for the other kinds.
        error: Why it cannot.
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


class Catalogue:
    """Looks below some folders, in a thread of its own, and remembers.

    Args:
        roots: Name and folder of each log directory; the name is empty where there is only one.
    """

    def __init__(self, roots: list[tuple[str, str]]) -> None:
        self._roots = roots
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._next_look = 0.0
        self._entries: dict[str, Entry] = {}
        self._heads: dict[tuple[str, Stamp], tuple[Head | None, str]] = {}
        self.is_complete = False
        self.is_cut = False

    def entries(self, patience_s: float) -> dict[str, Entry]:
        """What was found at the last look, by id; a new look is begun where that was long ago.

        Args:
            patience_s: How long to wait for a look under way.
        """
        with self._lock:
            if self._looking is None and time.monotonic() >= self._next_look:
                self._looking = threading.Thread(target=self._look, name="perfdoctor-catalogue", daemon=True)
                self._looking.start()
            looking = self._looking
        if looking is not None:
            looking.join(patience_s)
        return self._entries

    def _look(self) -> None:
        begin = told = time.monotonic()
        try:
            found: dict[str, Entry] = {}
            self.is_cut = False
            for name, root in self._roots:
                for entry in self._found_in(name, root):
                    found[entry.id] = entry
                    # At the first look, a page need not wait for the last folder.
                    if not self.is_complete and time.monotonic() - told > 0.1:
                        self._entries, told = dict(found), time.monotonic()
            self._entries = found
            known = {(entry.path, entry.stamp) for entry in found.values()}
            self._heads = {key: head for key, head in self._heads.items() if (key[0], _text(key[1])) in known}
        finally:
            now = time.monotonic()
            with self._lock:
                self.is_complete, self._looking = True, None
                self._next_look = now + max(FRESH_S, _REST * (now - begin))

    def _found_in(self, name: str, root: str) -> Iterator[Entry]:
        for n, (folder, inner, files) in enumerate(os.walk(root)):
            if n >= _MOST_FOLDERS:
                self.is_cut = True
                return
            has_ranks = RANKS_FOLDER in inner
            inner[:] = sorted(each for each in inner if not each.startswith(".") and each != RANKS_FOLDER)
            below = os.path.relpath(folder, root)
            label = "/".join(filter(None, (name, "" if below == "." else below.replace(os.sep, "/"))))
            label = as_text(label or os.path.basename(os.path.abspath(root)) or "/")
            yield from self._in_folder(folder, label, files, has_ranks)

    def _in_folder(self, folder: str, label: str, files: list[str], has_ranks: bool) -> Iterator[Entry]:
        told: set[str] = set()
        sessions = sorted(each for each in files if each.startswith(_STEM) and each.endswith(".json"))
        ranks = sorted(Path(folder, RANKS_FOLDER).glob(f"{_STEM}*.rank*.json")) if has_ranks else []
        if ranks and not sessions:  # rank 0 died before it could save
            sessions = [SESSION_FILE]
        for file in sessions:
            path = os.path.join(folder, file)
            stamp = _newest([path, *(str(one) for one in ranks if one.name.startswith(f"{Path(file).stem}.rank"))])
            head, error = self._head(path, stamp)
            told |= {os.path.basename(w.file) for w in (head.windows if head else ()) if w.file}
            yield Entry(
                id=f"{label}/{as_text(file)}", label=_labelled(label, file, head), kind="session", stamp=_text(stamp),
                path=path, head=head, error=error,
            )  # fmt: skip
        traces = sorted(file for file in files if file.endswith(TRACE_ENDINGS) and file not in told)
        if traces:
            stamp = _newest([os.path.join(folder, file) for file in traces])
            yield Entry(
                id=f"{label}/traces", label=f"{label} (traces)", kind="traces", stamp=f"{_text(stamp)}-{len(traces)}",
                path=folder, files=tuple(traces),
            )  # fmt: skip

    def _head(self, path: str, stamp: Stamp) -> tuple[Head | None, str]:
        key = (path, stamp)
        if key not in self._heads:
            try:
                self._heads[key] = (_decode_head(read_regular(path)), "")
            except FileNotFoundError:
                return None, ""
            except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._heads[key] = (None, str(error))
        return self._heads[key]


def roots_of(logdir: str | None, logdir_spec: str | None = None) -> list[tuple[str, str]]:
    """Name and folder of each log directory that TensorBoard was given; those that are not on this machine left out.

    Args:
        logdir: Of ``--logdir``.
        logdir_spec: Of ``--logdir_spec``: ``name:folder`` or folders, with commas between.
    """
    given = [("", logdir)] if logdir else []
    for one in (logdir_spec or "").split(","):
        name, colon, folder = one.partition(":")
        if one and "://" not in one:
            given.append((name, folder) if colon and name else ("", one))
    return [(name, os.path.expanduser(folder)) for name, folder in given if "://" not in folder]


def _labelled(label: str, file: str, head: Head | None) -> str:
    """The folder, with what tells several sessions in it apart."""
    rest = file.removeprefix(_STEM).removesuffix(".json").strip("._")
    if not rest:
        return label
    if head is not None and head.run.id == rest:
        return f"{label} ({head.run.stage or 'run'} {rest[:8]})"
    return f"{label} ({rest[:40]})"


def _newest(paths: list[str]) -> Stamp:
    newest = size = 0
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        newest, size = max(newest, stat.st_mtime_ns), size + stat.st_size
    return newest, size


def _text(stamp: Stamp) -> str:
    return f"{stamp[0]:x}-{stamp[1]:x}"
