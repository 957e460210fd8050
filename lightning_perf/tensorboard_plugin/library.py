"""Sessions and traces, read when they are requested and cached until they change; traces in a background thread."""

import functools
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from lightning_perf.errors import PerfDoctorError
from lightning_perf.records import Machine, Run, Session, TraceRecord, Verdict, Window, load_run

from .catalogue import TRACE_ENDINGS, Entry

if TYPE_CHECKING:
    from .timeline import Lane

_SESSIONS_KEPT = 8
_TRACES_KEPT = 64


class Shown(NamedTuple):
    """The run, and the one of its traces, that a view shows.

    Attributes:
        label: Label of the run in the list.
        session: The run's session; of a single trace, a session with only the trace and its findings.
        trace: The chosen trace; None without traces.
        traces: Labels of all traces.
        chosen: Index of the chosen trace.
        is_trace_only: Whether the run was recorded without PerfDoctor.
        file: File of the trace; None if it is not on this machine.
        trial_label: Label of the session that holds the trials; empty if they are in the session itself.
    """

    label: str
    session: Session
    trace: TraceRecord | None = None
    traces: tuple[str, ...] = ()
    chosen: int = 0
    is_trace_only: bool = False
    file: str | None = None
    trial_label: str = ""


Content = TypeVar("Content")


class Reading(Exception):
    """Raised while a file is still being read; the message names it."""


class Traces:
    """A queue that reads trace files in a background thread, the latest request first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[Hashable, Any] = OrderedDict()
        self._waiting: queue.LifoQueue[tuple[Hashable, Callable[[], Any]]] = queue.LifoQueue()
        self._reader: threading.Thread | None = None

    def ask(self, read: Callable[[Sequence[str]], Content], paths: Sequence[str]) -> Content:
        """Return what a function reads from traces.

        Args:
            read: Called with the paths in the background; its result is cached until a file changes.
            paths: The trace files.

        Raises:
            Reading: The result is not available yet.
            PerfDoctorError: The traces cannot be read.
        """
        stamps = [_stamp(path) for path in paths]
        key = (read, tuple(paths), tuple(stamps))
        with self._lock:
            if self._results.get(key) is None:
                if key not in self._results:
                    self._results[key] = None
                    self._waiting.put((key, lambda: read(paths)))
                    self._start()
                name = os.path.basename(paths[0]) if len(paths) == 1 else f"{len(paths)} traces"
                raise Reading(f"Reading {name} ({sum(size for _, size in stamps) / 2**20:.1f} MiB) …")
            self._results.move_to_end(key)
            known: Content | PerfDoctorError = self._results[key]
        if isinstance(known, PerfDoctorError):
            raise known
        return known

    def _start(self) -> None:
        if self._reader is None or not self._reader.is_alive():
            # A daemon thread does not delay the end of TensorBoard on Ctrl-C.
            self._reader = threading.Thread(target=self._read, name="perfdoctor-traces", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        while True:
            key, read = self._waiting.get()
            try:
                result = read()
            except PerfDoctorError as error:
                result = error
            except Exception as error:  # noqa: BLE001 - shown in the view of the trace
                result = PerfDoctorError(f"the trace could not be read: {type(error).__name__}: {error}")
            with self._lock:
                self._results[key] = result
                done = [each for each, record in self._results.items() if record is not None]
                for old in done[:-_TRACES_KEPT]:
                    del self._results[old]


def read_record(paths: Sequence[str]) -> TraceRecord:
    """Return the diagnosed record of one trace."""
    from lightning_perf.rules.engine import diagnose_trace
    from lightning_perf.traces import analyze

    return diagnose_trace(analyze(paths[0]))


def read_ranks(paths: Sequence[str]) -> tuple[tuple[TraceRecord, ...], tuple[str, ...]]:
    """Return the records of several traces by rank, and why others cannot be read.

    The first record holds the comparison of ranks.
    """
    from lightning_perf.traces import analyze_many

    records, errors = analyze_many(paths)
    if not records:
        raise PerfDoctorError("; ".join(map(str, errors)))
    return tuple(records), tuple(map(str, errors))


def read_lanes(paths: Sequence[str]) -> "tuple[Lane, ...]":
    """Return the longest events of one trace by thread and stream."""
    from lightning_perf.traces import read

    from .timeline import lanes_of

    return lanes_of(read(paths[0]))


def _stamp(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError as error:
        raise PerfDoctorError(f"{os.path.basename(path)} cannot be read: {error.strerror}") from error
    return stat.st_mtime_ns, stat.st_size


class Library:
    """Reads sessions and traces, and caches them; ``read_summary`` reads the session of an event file."""

    def __init__(self, read_summary: Callable[[Entry], Session]) -> None:
        self.traces = Traces()
        self._read_summary = read_summary
        self._session = functools.lru_cache(_SESSIONS_KEPT)(self._read_session)  # an entry changes with its files

    def show(self, entry: Entry, chosen: int | None, trial: Entry | None = None) -> Shown:
        """Return the data of an entry's view.

        Args:
            entry: An entry of ``Catalogue``.
            chosen: Index of the trace; None for the latest.
            trial: The entry that holds the trials of this training, if that is another one.

        Raises:
            Reading: The trace is being read.
            PerfDoctorError: The entry cannot be read.
            IndexError: The entry has no such trace.
        """
        if entry.kind == "traces":
            return self._of_traces(entry, chosen)
        shown = self._of_session(entry, chosen)
        if trial is None:
            return shown
        try:
            trials = self._session(trial).trials
        except PerfDoctorError:
            return shown
        return shown._replace(session=msgspec.structs.replace(shown.session, trials=trials), trial_label=trial.label)

    def _of_session(self, entry: Entry, chosen: int | None) -> Shown:
        session = self._session(entry)
        windows = [window for window in session.windows if window.trace is not None]
        if not windows:
            if chosen:
                raise IndexError(chosen)
            return Shown(entry.label, session)
        index = _chosen(chosen, len(windows))
        window = windows[index]
        labels = tuple(f"steps {w.first_step:,} to {w.first_step + max(w.n_steps, 1) - 1:,}" for w in windows)
        return Shown(entry.label, session, window.trace, labels, index, file=_trace_beside(entry.path, window.file))

    def file(self, entry: Entry, chosen: int | None) -> str | None:
        """Return the path of a trace; None if it is not on this machine."""
        try:
            if entry.kind == "traces":
                return os.path.join(entry.path, entry.files[_chosen(chosen, len(entry.files))])
            return self._of_session(entry, chosen).file
        except IndexError:
            return None

    def _read_session(self, entry: Entry) -> Session:
        return self._read_summary(entry) if entry.kind == "summary" else load_run(Path(entry.path))

    def _of_traces(self, entry: Entry, chosen: int | None) -> Shown:
        index = _chosen(chosen, len(entry.files))
        file = os.path.join(entry.path, entry.files[index])
        record = self.traces.ask(read_record, [file])
        return Shown(entry.label, session_of(record), record, entry.files, index, is_trace_only=True, file=file)


def _trace_beside(session: str, name: str | None) -> str | None:
    """Return the path of the trace that a session names; None unless it is a trace below the session's folder.

    Sessions are untrusted, and the file is sent to the browser, so the path must not leave the folder.
    """
    if not session or not name or not name.endswith(TRACE_ENDINGS):
        return None
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts:
        return None
    folder = Path(session).parent
    file = folder.joinpath(*parts)
    is_below = file.resolve().is_relative_to(folder.resolve())  # it may be a link
    return str(file) if is_below and os.path.isfile(file) else None  # False for a name that is too long


def session_of(record: TraceRecord) -> Session:
    """Return a session that holds only a trace."""
    why = "this is a profiler trace without a PerfDoctor session"
    return Session(
        run=Run(id="trace", stage="fit", status="finished", started_at="", wall_s=record.span_s,
                rank=record.rank or 0, world_size=record.world_size or 1),
        machine=Machine(os="", python=""),
        windows=(Window(first_step=0, n_steps=len(record.steps), status="recorded", reason="a trace file", cost_s=0.0,
                        file=record.source, trace=record),),
        findings=record.findings,
        verdict=record.verdict or Verdict(category="unknown", code=None, text="too little data for a diagnosis"),
        missing={"steady": why, "memory": why},
    )  # fmt: skip


def _chosen(index: int | None, n: int) -> int:
    if index is None:
        return n - 1
    if not 0 <= index < n:
        raise IndexError(index)
    return index
