"""Make the reports of one run in its folder; a report that fails is switched off."""

import errno
import logging
import os
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_perf import seams
from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.records import RANKS_FOLDER, SESSION_FILE, Finding, Hang, Session
from lightning_perf.records.files import require_free_space, write_whole
from lightning_perf.records.remote import AnyPath, RemotePath, any_path
from lightning_perf.remote_folder import RemoteFolder, SpareThread, within
from lightning_perf.reports import console as console_report
from lightning_perf.reports import formats
from lightning_perf.reports import tensorboard as tensorboard_report
from lightning_perf.reports.sections.hang import hang_text

if TYPE_CHECKING:
    from .hooks import DoctorHooks

_log = logging.getLogger("lightning_perf")

_REPORTING_ALLOWED_S = 0.25  # a few reports, however short the run is
_REPORTING_SHARE = 0.02  # of the run's time: what the reports at the ends of epochs may take
WITHIN_EPOCH_LEAST_S = 60.0  # of a run: a shorter one is over before its line could be acted on

_UPLOAD_S = 30.0  # for each upload at the end of a run
_INTERRUPTED_S = 1.0  # for all uploads of an interrupted run; of a preempted one, for reports and uploads together


class RunReports:
    """Writes and prints the reports of one run."""

    def __init__(self, doctor: "DoctorHooks", trainer: Any, probes: ProbeSet) -> None:
        self.folder = Path()
        self.spent_s = 0.0  # on reports at the ends of epochs
        self._doctor, self._trainer, self._probes = doctor, trainer, probes
        self._session_writers: dict[int, tensorboard_report.SessionWriter] = {}  # by the id of the logger
        self._remote: RemoteFolder | None = None  # if the run's folder is at a URL
        self._ends_s: float | None = None  # when an interrupted run must be over
        self._is_copied = False  # True also if copying failed
        self._spare: SpareThread | None = None  # for a loop without a Trainer, which may last until Python ends
        self._shown: Session | None = None  # the last one on the console before the end of the run

    def default_folder(self, log_dir: str | None) -> str:
        """Return a folder that only this run uses: its logger's, beside the checkpoints, or a new one named by time."""
        trainer = self._trainer
        new = os.path.join("perf_logs", f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}")
        folder = self._probes.call("folder", seams.run_folder, trainer, log_dir, new)
        return folder or os.path.join(trainer.default_root_dir, new)

    def open(self, default_folder: str) -> None:
        """Choose the run's folder; if it cannot be written, warn once and write no files."""
        trainer, out_dir = self._trainer, self._doctor.out_dir
        place = any_path(default_folder) if out_dir is None else out_dir
        files = [name for name in ("json", *formats.RUN_FORMATS) if name in self._doctor.reports]
        files += ["last save"] if "json" in files else []
        files += ["traces"] if self._doctor.window_options is not None else []
        if isinstance(place, Path):
            self.folder = place
        has_uploads = isinstance(place, RemotePath) or any(map(seams.accepts_any_figure, trainer.loggers))
        if has_uploads and not seams.has_trainer(trainer):
            self._spare = SpareThread()
        if trainer.fast_dev_run or not (files or isinstance(place, RemotePath)):
            return
        try:
            if isinstance(place, Path):
                _require_writable(place)
            else:
                self._remote = RemoteFolder(place)
                self.folder = self._remote.folder
                place.require_storage()
        except OSError as error:
            warning = (
                f"PerfDoctor cannot write to {place} ({error.strerror}): no files are written, but the "
                "diagnosis is still shown; choose another out_dir."
            )
            for name in files if self._remote is None else (*files, "copy"):
                self._probes.switch_off(name, error, warning)

    @property
    def shared_folder(self) -> Path | None:
        """The folder that ranks share; None where each rank has its own, whose files are copied to a URL."""
        return None if self._remote is not None or self._trainer.fast_dev_run else self.folder

    def can_afford_epoch(self, wall_s: float) -> bool:
        """Return whether reporting keeps to its share of the run, as it does not after very short epochs."""
        return self.spent_s <= max(_REPORTING_ALLOWED_S, _REPORTING_SHARE * wall_s)

    def preflight(self, findings: tuple[Finding, ...], session: Session) -> None:
        """Print the findings that follow from settings alone."""
        if findings:
            is_full = self._doctor.console == "full"
            full, brief = console_report.preflight_document, console_report.brief_preflight
            self._print(lambda: full(findings) if is_full else brief(findings, session))

    def epoch(self, session: Session, news: str | None = None, is_within: bool = False) -> None:
        """Report an epoch, or a diagnosis within it, and in one line what became slower since earlier runs.

        A diagnosis within an epoch goes to no logger, and to the console only once the run has taken a minute.
        """
        trainer = self._trainer
        if not trainer.is_global_zero:
            return
        reports = self._active()
        if "console" in reports and (not is_within or session.run.wall_s >= WITHIN_EPOCH_LEAST_S):
            self._print(lambda: self._epoch_report(session, trainer.current_epoch, is_within))
        if news:
            self.news(news)
        if "tensorboard" in self._doctor.reports and not (is_within or trainer.fast_dev_run):
            self._probes.call("loggers", self._write_to_loggers, session)
        self.save(session)

    def _write_to_loggers(self, session: Session) -> None:
        """Report a session to each logger that accepts it, as a separate row: Lightning's own rows do not change."""
        step = seams.logged_step(self._trainer)
        for logger in self._trainer.loggers:
            if seams.accepts_any_figure(logger):
                # With the step of the epoch's last row, which Lightning's own row for the epoch has too.
                self._probes.call(type(logger).__name__, _log_figures, logger, session, max(0, step - 1))
            else:
                self._probes.call("tensorboard", self._write_events, logger, session, step)

    def _write_events(self, logger: Any, session: Session, step: int) -> None:
        writer = seams.tensorboard_writer(logger)
        if writer is None:
            return
        # If a write fails, each later write of the user's raises too: torch's writer does not recover.
        require_free_space(getattr(writer, "log_dir", None) or ".", tensorboard_report.EVENT_BYTES)
        session_writer = self._session_writers.setdefault(id(logger), tensorboard_report.SessionWriter())
        if step != session_writer.step:  # the run's end may be that of its last epoch
            tensorboard_report.write_scalars(writer, session, step)
            tensorboard_report.write_text(writer, session, step)
        session_writer.write(writer, session, step)

    def _end_events(self, session: Session) -> None:
        """Write the last session to event files; a hosted service gets it by ``upload``."""
        step = seams.logged_step(self._trainer)
        for logger in self._trainer.loggers:
            self._write_events(logger, session, step)

    def news(self, text: str) -> None:
        """Print one line, unless nothing is printed."""
        if "console" in self._active():
            self._print(lambda: console_report.brief_news(text))

    def save(self, session: Session) -> None:
        """Write the session, between two diagnoses."""
        if "json" in self._active():
            self._probes.call("json", self._save, session)

    def _epoch_report(self, session: Session, epoch: int, is_within: bool) -> Any:
        """Return what the console shows of an epoch, or within it; None if nothing."""
        if self._doctor.console == "full" and not is_within:
            report: Any = console_report.epoch_document(session, epoch, self._shown)
        else:
            report = console_report.brief_epoch(session, epoch, self._shown, is_within)
        if report is not None:
            self._shown = session
        return report

    def run(self, session: Session, diagnose: Callable[[Session], Session]) -> None:
        """Report a finished run; ``diagnose`` adds failures of reports, and what follows from them, to a session."""
        begin_s = time.monotonic()
        session = self._make_all(self._with_post_mortem(session, diagnose), diagnose)
        if session.run.status == "interrupted" and session.run.error != "TrialPruned":  # Optuna's, which is no hurry
            begin_s = begin_s if seams.is_preempted(self._trainer) else time.monotonic()
            self._ends_s = begin_s + _INTERRUPTED_S
        if "upload" in self._active() and self._trainer.is_global_zero and _has_content(session):
            self._probes.call("upload", self._upload, session)
        self.close(self._limit_s())
        if len(self._probes.failures) > len(session.probes_off):
            diagnose(session)

    def _limit_s(self) -> float:
        """Return how long the next upload may take."""
        return _UPLOAD_S if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())

    def close(self, limit_s: float = _INTERRUPTED_S) -> None:
        """Copy what is not at the URL yet, and leave no temporary folder or thread; also after a run without reports.

        Can be called twice.
        """
        if self._remote is not None and not self._is_copied:
            self._is_copied = True
            self._finish_copying(self._remote, limit_s)
        if self._spare is not None:
            self._spare.close()

    def _make_all(self, session: Session, diagnose: Callable[[Session], Session]) -> Session:
        """Make the reports on this machine; return the session, which says which of them failed."""
        reports, failures = self._active(), self._probes.failures
        if not self._trainer.is_global_zero:
            if "json" in reports:
                self._probes.call("json", self._save, session)
            return session
        if "console" in reports and _has_content(session):
            self._print(lambda: self._run_report(session, is_saved="json" in reports))
        elif _has_no_step(session) and self._probes.loop is not None and not seams.is_tuning():
            self.news(_why_no_step(session))
        for name in formats.RUN_FORMATS:
            if name in reports and not seams.is_preempted(self._trainer):
                self._probes.call(name, self._write_report, name, session)
        if "tensorboard" in reports and session.run.stage == "fit" and _has_content(session):
            self._probes.call("tensorboard", self._end_events, session)
        # Record reports that failed.
        if len(failures) > len(session.probes_off):
            session = diagnose(session)
        if "json" in reports:
            self._probes.call("json", self._save, session)
        elif "json" in self._doctor.reports and not self._trainer.fast_dev_run:  # a full disk may have room again
            self._probes.call("last save", self._save, session)
        return session

    def _upload(self, session: Session) -> None:
        """Upload session and page to the hosted loggers; if the run must end soon, only the session."""
        loggers = [logger for logger in self._trainer.loggers if seams.accepts_any_figure(logger)]
        if not loggers:
            return
        files = {self._session_path(session).name: session.file_content()}
        if self._ends_s is None:
            files |= dict([self._report("html", session)])
        for logger in loggers:
            upload = partial(seams.upload_files, logger, self._session_path(session).stem, files)
            self._probes.call(f"upload to {type(logger).__name__}", within, self._limit_s(), upload, self._spare)

    def _finish_copying(self, remote: RemoteFolder, limit_s: float) -> None:
        if "copy" in self._probes.failures:
            remote.remove()
            return
        try:
            remote.finish(limit_s, self._spare)
        except Exception as error:  # noqa: BLE001 - reported; the run goes on
            kept = f"PerfDoctor could not copy its files to {remote.target} ({error}); they are in {remote.folder}."
            self._probes.switch_off("copy", error, kept)
            if self._doctor.session is not None:
                self._doctor._saved_at = self._session_path(self._doctor.session)

    def _run_report(self, session: Session, is_saved: bool) -> Any:
        place = console_report.short_path(self._place(session)) if is_saved else None
        if self._doctor.console == "full":
            return console_report.session_document(session, place=place) if session.run.n_steps > 0 else None
        return console_report.brief_report(session, place)

    def post_mortem(self, session: Session | None) -> None:
        """Print the out-of-memory report, after all others."""
        oom = session.memory.oom if session is not None and "console" in self._doctor.reports else None
        if session is None or oom is None:
            return
        if self._doctor.console == "full":
            self._print(lambda: console_report.post_mortem_document(session))
        elif not self._trainer.is_global_zero:  # rank 0 does not know why this rank ended
            file = self.folder / oom.post_mortem_file if oom.post_mortem_file else None
            place = console_report.short_path(self._place_of(file)) if file else None
            self._print(lambda: console_report.brief_post_mortem(session, oom, place))

    def hang(self, hang: Hang, stacks: str) -> Hang:
        """Write the file of a hang, and print it on the first live rank. Called in another thread."""
        trainer, stage = self._trainer, self._probes.context.stage if self._probes.context is not None else "fit"
        name, step = ("hang.txt", "step") if stage == "fit" else (f"hang_{stage}.txt", "batch")
        if not trainer.is_global_zero:
            name = f"{RANKS_FOLDER}/{Path(name).stem}.rank{trainer.global_rank}.txt"
        if not trainer.fast_dev_run:
            try:
                self._write(name, f"{hang_text(hang, step)}\n{stacks}".encode())
                hang = msgspec.structs.replace(hang, file=name)
                if self._remote is not None:
                    self._remote.copy_soon()  # a run that hangs may never end
            except OSError as error:
                _log.debug("writing %s failed: %s", name, error)
        live = [rank.rank for rank in hang.ranks if rank.age_s < hang.limit_s]
        if "console" in self._active() and trainer.global_rank == min(live, default=0):
            place = console_report.short_path(self._place_of(self.folder / name)) if hang.file else None
            shown = hang_text(msgspec.structs.replace(hang, file=place), step)
            console_report.emit(shown, display=seams.live_display(trainer))
        return hang

    def _with_post_mortem(self, session: Session, diagnose: Callable[[Session], Session]) -> Session:
        """Write the file on the rank whose memory ran out; return the session, which names no file if that fails."""
        oom = session.memory.oom
        if oom is None or oom.post_mortem_file is None:
            return session
        self._probes.call("post-mortem", self._write_post_mortem, session, oom.post_mortem_file)
        if "post-mortem" not in self._probes.failures:
            return session
        memory = msgspec.structs.replace(session.memory, oom=msgspec.structs.replace(oom, post_mortem_file=None))
        return diagnose(msgspec.structs.replace(session, memory=memory))

    def _write_post_mortem(self, session: Session, name: str) -> None:
        text = console_report.to_text(console_report.post_mortem_document(session), width=100)
        self._write(name, text.encode())

    def _print(self, make_report: Callable[[], Any]) -> None:
        def show() -> None:
            report = make_report()
            if report is not None:
                console_report.emit(report, display=seams.live_display(self._trainer))

        self._probes.call("console", show)

    def _write_report(self, format_: str, session: Session) -> None:
        self._write(*self._report(format_, session))

    def _report(self, format_: str, session: Session) -> tuple[str, bytes]:
        """Return the report in a format, with the name of its file."""
        chosen = formats.FORMATS[format_]
        name = self._session_path(session).stem.replace("session", "report") + chosen.suffix
        return name, chosen.draw(session, False, console_report.short_path(self._place(session))).encode()

    def _write(self, name: str, content: bytes) -> None:
        """Write a file into the run's folder; raise ``OSError`` if that would fill the disk."""
        require_free_space(self.folder, len(content))
        write_whole(self.folder / name, content)

    def _save(self, session: Session) -> None:
        require_free_space(self.folder, 0)  # a session is small beside the reserve
        session.save(self._session_path(session))
        self._doctor._saved_at = self._place(session)
        if self._remote is not None and session.run.status == "running":
            self._remote.copy_soon()

    def _active(self) -> tuple[str, ...]:
        """Return the reports to make; with ``fast_dev_run``, no files."""
        wanted = tuple(report for report in self._doctor.reports if report not in self._probes.failures)
        return tuple(r for r in wanted if r == "console") if self._trainer.fast_dev_run else wanted

    def _session_path(self, session: Session) -> Path:
        name = SESSION_FILE if session.run.stage == "fit" else f"perf_session_{session.run.stage}.json"
        if session.run.rank == 0:
            return self.folder / name
        return self.folder / RANKS_FOLDER / f"{Path(name).stem}.rank{session.run.rank}.json"

    def _place(self, session: Session) -> AnyPath:
        """Return where users find the session file."""
        return self._place_of(self._session_path(session))

    def _place_of(self, file: Path) -> AnyPath:
        return file if self._remote is None else self._remote.place_of(file)


def _log_figures(logger: Any, session: Session, step: int) -> None:
    require_free_space(logger.save_dir or ".", 0)  # services keep files of their own on this machine
    seams.log_own_row(logger, tensorboard_report.scalars(session), step)


def _has_content(session: Session) -> bool:
    return session.run.n_steps > 0 or session.memory.oom is not None


def _has_no_step(session: Session) -> bool:
    return session.run.has_trainer and session.run.status == "finished" and session.run.n_steps == 0


def _why_no_step(session: Session) -> str:
    empty = "the loader is empty or limited to 0"
    if session.run.stage != "fit":
        return f"no batch was run: {empty}"
    return (
        f"no step was run: max_epochs, max_steps or max_time was already reached, {empty}, or on_train_batch_start "
        "returned -1"
    )


def _require_writable(folder: Path) -> None:
    """Raise ``OSError`` unless files can be made in a folder; it need not exist yet, and nothing is written."""
    try:
        os.stat(folder / SESSION_FILE)
    except FileNotFoundError:
        pass
    except ValueError as error:  # a path with a zero byte
        raise OSError(errno.EINVAL, str(error), str(folder)) from error
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not os.path.isdir(place):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if not os.access(place, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(place))
