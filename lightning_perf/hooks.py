"""The doctor's logic, for whichever namespace's ``Callback`` it is mixed into: hooks to probes, rules, reports.

It imports neither Lightning namespace.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf import seams
from lightning_perf.errors import ConfigError
from lightning_perf.probes.ranks import gather_ranks
from lightning_perf.probes.recorder import Recorder, Status
from lightning_perf.records import SESSION_FILE, ProbeFailure, Session
from lightning_perf.reports import console as console_report
from lightning_perf.reports import tensorboard as tensorboard_report
from lightning_perf.rules.engine import check_codes, diagnose, preflight

REPORTS = ("console", "tensorboard", "json")

_log = logging.getLogger("lightning_perf")


class DoctorHooks:
    """Tells why a training is slow, what to change, and what that gains.

    Add it to any Trainer: ``Trainer(callbacks=[PerfDoctor()])``. It changes neither results nor speed, and takes
    everything out again that it put in place.

    Args:
        schedule: When profiler windows open: ``"auto"``, ``None`` (never), or ``(wait, warmup, active[, repeat])`` in
            steps. Checked, but no window is opened yet by this version.
        every_n_epochs: Diagnose at the end of every so many epochs; the end of a run is always diagnosed.
        reports: Which of ``"console"``, ``"tensorboard"`` and ``"json"``. ``"tensorboard"`` also gives plain figures
            to every other logger.
        out_dir: Where ``perf_session.json`` goes; None for the first logger's folder, or ``perf_logs/<time>`` where
            there is no logger.
        memory: Whether to read memory use.
        device_stats: Whether to use the device's own clock (events; never a synchronisation).
        select: Codes or prefixes of the rules to run, e.g. ``["PD1"]``; None for all.
        ignore: Codes or prefixes of rules to leave out; the longest match decides.

    Attributes:
        session: The latest session; None before the first run.

    Raises:
        ConfigError: An argument cannot be used as given.
    """

    def __init__(
        self,
        schedule: str | list[int] | tuple[int, ...] | None = "auto",
        every_n_epochs: int = 1,
        reports: list[str] | tuple[str, ...] = REPORTS,
        out_dir: str | Path | None = None,
        memory: bool = True,
        device_stats: bool = True,
        select: list[str] | tuple[str, ...] | None = None,
        ignore: list[str] | tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        self.schedule = _checked_schedule(schedule)
        self.every_n_epochs = _checked_whole("every_n_epochs", every_n_epochs, least=1)
        self.reports = _checked_reports(reports)
        self.out_dir = _checked_path(out_dir)
        self.memory = _checked_flag("memory", memory)
        self.device_stats = _checked_flag("device_stats", device_stats)
        self.select = _checked_codes("select", select)
        self.ignore = _checked_codes("ignore", ignore)
        check_codes(self.select, self.ignore)
        self.session: Session | None = None
        self._forget()

    def _forget(self) -> None:
        """The state between runs."""
        self._recorder: Recorder | None = None
        self._reported: Session | None = None
        self._folder: Path | None = None
        self._probes_off: dict[str, ProbeFailure] = {}
        self._pending_metrics: dict[int, dict[str, float]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Arguments and findings travel to other processes; what hangs on a Trainer does not."""
        live: dict[str, Any] = {"_recorder": None, "_pending_metrics": {}}
        return {**self.__dict__, **live}

    # -- the run ------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Hangs the probes in."""
        self._end()  # a run that ended without teardown
        self._forget()
        # log_dir is a collective call: on every rank, whatever else happens.
        log_dir = trainer.log_dir
        try:
            self._folder = self._choose_folder(trainer, log_dir)
            self._recorder = Recorder(
                trainer,
                pl_module,
                self,
                stage,
                wants_memory=self.memory,
                wants_device_clock=self.device_stats,
                on_fail=self._switch_off,
            )
            self._recorder.start(self._metrics_for)
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            self._switch_off("setup", error)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The last hook of a run that went well."""
        self._finish(trainer, "finished")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The last hook of a run that did not."""
        self._finish(trainer, "interrupted" if isinstance(exception, KeyboardInterrupt) else "failed", exception)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Loaders, model and optimizers stand: settings can be read."""
        self._guard("settings", self._read_settings, trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """The same where validation is all there is."""
        if self._recorder is not None and self._recorder.stage != "fit":
            self._guard("settings", self._read_settings, trainer)

    on_test_start = on_validation_start
    on_predict_start = on_validation_start

    # -- steps ------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A step begins."""
        if self._recorder is not None:
            try:
                self._recorder.loop.batch_begins(batch)
            except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
                self._switch_off("steps", error)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A step is over."""
        if self._recorder is not None:
            try:
                self._recorder.loop.batch_ends()
            except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
                self._switch_off("steps", error)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Watches the first steps' gradients: are they cleared?"""
        watch = self._recorder.zero_grad_watch if self._recorder is not None else None
        if watch is not None and not watch.is_done:
            self._guard("gradients", watch.before_backward)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Likewise."""
        watch = self._recorder.zero_grad_watch if self._recorder is not None else None
        if watch is not None and not watch.is_done:
            self._guard("gradients", watch.after_backward)

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Likewise."""
        watch = self._recorder.zero_grad_watch if self._recorder is not None else None
        if watch is not None and not watch.is_done:
            self._guard("gradients", watch.before_zero_grad, optimizer)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A batch of validation, testing or prediction begins."""
        if self._recorder is not None:
            try:
                self._recorder.evaluation_begins(batch)
            except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
                self._switch_off("steps", error)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """It is over."""
        if self._recorder is not None:
            try:
                self._recorder.evaluation_ends(outputs)
            except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
                self._switch_off("steps", error)

    on_test_batch_start = on_validation_batch_start
    on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_predict_batch_end = on_validation_batch_end

    # -- epochs ------------------------------------------------------------

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Diagnoses."""
        recorder = self._recorder
        if recorder is None:
            # The other ranks gather: this one must take part.
            self._gather(trainer, None)
            return
        self._guard("steps", recorder.loop.epoch_ends)
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._guard("loader", recorder.epoch_ended, False)
            self._guard("diagnosis", self._diagnose_epoch, trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last time at which loggers take figures."""
        recorder = self._recorder
        if recorder is None:
            return
        self._guard("loader", recorder.epoch_ended, True)
        self._guard("tensorboard", self._flush_metrics, trainer)

    # -- inside ------------------------------------------------------------

    def _read_settings(self, trainer: Any) -> None:
        if self._recorder is None:
            return
        self._recorder.loops_ready()
        if self._recorder.stage != "fit" or not trainer.is_global_zero or "console" not in self.reports:
            return
        likely = preflight(self._recorder.session(), self.select, self.ignore)
        if likely:
            console_report.emit(console_report.preflight_report(likely), console=seams.live_console(trainer))

    def _diagnose_epoch(self, trainer: Any) -> None:
        session = self._diagnosed(trainer, "running", None)
        if not trainer.is_global_zero or session is None:
            return
        if "console" in self._active_reports(trainer):
            report = console_report.epoch_report(session, trainer.current_epoch, self._reported)
            self._guard("console", console_report.emit, report, console=seams.live_console(trainer))
        if "tensorboard" in self._active_reports(trainer):
            self._guard("tensorboard", self._log_figures, trainer, session)
        if "json" in self._active_reports(trainer):
            self._guard("json", session.save, self._session_path(session))
        self._reported = session

    def _diagnosed(self, trainer: Any, status: Status, error: BaseException | None) -> Session | None:
        """The session up to now, with findings; every rank must call it while all of them still run."""
        assert self._recorder is not None
        session = self._recorder.session(status, error)
        if status == "running":
            ranks = self._gather(trainer, session)
            if ranks is not None:
                session = msgspec.structs.replace(session, ranks=ranks)
        elif self.session is not None:
            session = msgspec.structs.replace(session, ranks=self.session.ranks)
        session = msgspec.structs.replace(session, probes_off=tuple(self._probes_off.values()))
        self.session = diagnose(session, self.select, self.ignore)
        return self.session

    def _gather(self, trainer: Any, session: Session | None) -> Any:
        if trainer.world_size == 1:
            return None
        return gather_ranks(session.steady if session else None, trainer.strategy.root_device)

    def _finish(self, trainer: Any, status: Status, error: BaseException | None = None) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        if recorder.stage != "fit":
            self._guard("steps", recorder.loop.epoch_ends)
        self._end()
        self._guard("diagnosis", self._report_run, trainer, recorder, status, error)
        self._recorder = None

    def _end(self) -> None:
        """Takes out what was put in place."""
        if self._recorder is not None:
            self._guard("teardown", self._recorder.stop)

    def _report_run(self, trainer: Any, recorder: Recorder, status: Status, error: BaseException | None) -> None:
        session = self._diagnosed(trainer, status, error)
        if session is None or not trainer.is_global_zero:
            return
        has_run = recorder.loop.main.n_steps > 0
        if "console" in self._active_reports(trainer) and has_run:
            self._guard(
                "console", console_report.emit, console_report.run_report(session), console=seams.live_console(trainer)
            )
        if "json" in self._active_reports(trainer) and (has_run or self.session is not None):
            self._guard("json", session.save, self._session_path(session))

    def _active_reports(self, trainer: Any) -> tuple[str, ...]:
        """A trial run of a few batches leaves no files behind."""
        wanted = tuple(report for report in self.reports if report not in self._probes_off)
        return tuple(r for r in wanted if r == "console") if trainer.fast_dev_run else wanted

    def _choose_folder(self, trainer: Any, log_dir: str | None) -> Path:
        if self.out_dir is not None:
            return self.out_dir
        if trainer.loggers and log_dir:
            return Path(log_dir)
        return Path(trainer.default_root_dir) / "perf_logs" / time.strftime("%Y%m%d-%H%M%S")

    def _session_path(self, session: Session) -> Path:
        assert self._folder is not None
        name = SESSION_FILE if session.run.stage == "fit" else f"perf_session_{session.run.stage}.json"
        return self._folder / name

    # -- loggers ------------------------------------------------------------

    def _log_figures(self, trainer: Any, session: Session) -> None:
        figures = tensorboard_report.scalars(session)
        step = seams.logged_step(trainer)
        for logger in trainer.loggers:
            writer = _tensorboard_writer(logger)
            if writer is not None:
                tensorboard_report.write_scalars(writer, session, step)
                tensorboard_report.write_text(writer, session, step)
            else:
                self._pending_metrics[id(logger)] = figures

    def _metrics_for(self, logger: Any) -> dict[str, float]:
        """Figures to log along with what Lightning logs now; each set once."""
        if not self._pending_metrics:
            return {}
        return self._pending_metrics.pop(id(logger), {})

    def _flush_metrics(self, trainer: Any) -> None:
        """Logs what no later call of Lightning's took along."""
        step = max(0, seams.logged_step(trainer) - 1)
        for logger in trainer.loggers:
            figures = self._pending_metrics.pop(id(logger), None)
            if figures:
                logger.log_metrics(metrics=figures, step=step)
                logger.save()

    # -- when something of ours breaks ------------------------------------------------------------

    def _guard(self, probe: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Calls a probe or report unless it is off; one that raises is switched off and the training goes on."""
        if probe in self._probes_off:
            return
        try:
            function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - reported by _switch_off
            self._switch_off(probe, error)

    def _switch_off(self, probe: str, error: Exception) -> None:
        if probe in self._probes_off:
            return
        recorder = self._recorder
        step = recorder.loop.main.n_steps if recorder is not None else 0
        failure = ProbeFailure(probe=probe, error=f"{type(error).__name__}: {error}", step=step)
        self._probes_off[probe] = failure
        _log.warning(
            "PerfDoctor switched its probe %r off for this run (%s); the training is not affected.",
            probe,
            failure.error,
            exc_info=_log.isEnabledFor(logging.DEBUG),
        )
        if probe == "steps" and recorder is not None:
            recorder.stop()


def _tensorboard_writer(logger: Any) -> Any:
    """The SummaryWriter of a logger that has one; None for others."""
    if "tensorboard" not in type(logger).__name__.lower():
        return None
    experiment = getattr(logger, "experiment", None)
    return experiment if hasattr(experiment, "add_text") and hasattr(experiment, "add_scalar") else None


# -- arguments ------------------------------------------------------------


def _checked_schedule(schedule: Any) -> str | tuple[int, ...] | None:
    if schedule is None or schedule == "auto":
        return schedule  # type: ignore[no-any-return]
    expected = 'expected "auto", None or (wait, warmup, active[, repeat]) in steps with active ≥ 1, e.g. (5, 2, 3, 1)'
    if not isinstance(schedule, (list, tuple)) or len(schedule) not in (3, 4):
        raise ConfigError(f"schedule={schedule!r}: {expected}")
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in schedule) or schedule[2] < 1:
        raise ConfigError(f"schedule={schedule!r}: {expected}")
    return tuple(schedule)


def _checked_whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r}: expected a whole number of at least {least}")
    return value


def _checked_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: expected True or False")
    return value


def _checked_path(value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value):
        raise ConfigError(f"out_dir={value!r}: expected a folder's path or None")
    path = Path(value)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"out_dir={str(path)!r} is a file: expected a folder, which is made where it is missing")
    return path


def _checked_reports(reports: Any) -> tuple[str, ...]:
    if isinstance(reports, str) or not isinstance(reports, (list, tuple)) or any(r not in REPORTS for r in reports):
        raise ConfigError(f"reports={reports!r}: expected a list of some of {', '.join(map(repr, REPORTS))}")
    return tuple(reports)


def _checked_codes(name: str, codes: Any) -> Sequence[str] | None:
    if codes is None:
        return None
    if isinstance(codes, str) or not isinstance(codes, (list, tuple)) or not all(isinstance(c, str) for c in codes):
        raise ConfigError(f'{name}={codes!r}: expected a list of rule codes or prefixes, e.g. ["PD1", "PD502"]')
    return tuple(codes)
