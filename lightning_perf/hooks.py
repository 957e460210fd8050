"""The doctor's logic, for whichever namespace's ``Callback`` it is mixed into: hooks to probes, rules, reports.

It imports neither Lightning namespace. Every hook that Lightning calls stands here, with the order in which probes and
reports take part in it: that order is what this file is about, so it is longer than others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf import arguments, seams
from lightning_perf.interrupts import is_from_signal, raise_if_from_signal
from lightning_perf.live import LiveTreatments
from lightning_perf.logger_reports import LoggerReports
from lightning_perf.probes.arithmetic import ArithmeticProbe
from lightning_perf.probes.clock import NEVER
from lightning_perf.probes.looks import StepLooks
from lightning_perf.probes.loop import LoopProbe
from lightning_perf.probes.memory import MemoryProbe
from lightning_perf.probes.ranks import RankProbe
from lightning_perf.probes.recorder import Recorder, Status
from lightning_perf.probes.window import WindowProbe
from lightning_perf.progress import BarFigures
from lightning_perf.records import RANKS_FOLDER, SESSION_FILE, ProbeFailure, Session, TraceRecord, Window
from lightning_perf.records.files import require_room, write_whole
from lightning_perf.reports import console as console_report
from lightning_perf.rules.engine import check_codes, diagnose, hypotheses, preflight

_log = logging.getLogger("lightning_perf")

_REPORTING_ALLOWED_S = 0.25  # always: a few reports of a short run
_REPORTING_SHARE = 0.02  # of the run's time: what the reports at the ends of epochs may take


_GRADIENT_HOOKS = ("on_before_backward", "on_after_backward", "on_before_zero_grad")


class DoctorHooks:
    """Tells why a training is slow, what to change, and what that gains.

    Add it to any Trainer: ``Trainer(callbacks=[PerfDoctor()])``. It changes no results, says what it costs, and
    takes everything out again that it put in place.

    Args:
        schedule: When profiler windows open. ``"auto"``: one short window once the steady state is reached, if the run
            is long enough for it to cost less than 1 %, and another when the step time changes or ``profile_now()``
            asks. ``(wait, warmup, active[, repeat])``: in steps; repeat 0 for as long as the run goes, 1 if left out.
            ``None``: never.
        every_n_epochs: Diagnose at the end of every so many epochs, and less often where epochs are so short that
            reporting would take more than 2 % of the run; the end of a run is always diagnosed.
        reports: Which of ``"console"``, ``"tensorboard"``, ``"json"`` and ``"html"`` (at the end of a run, one file to
            be mailed: ``perf_report.html``). ``"tensorboard"`` also logs plain figures to Lightning's loggers for W&B,
            MLflow, Comet and Neptune; any other logger is left alone.
        console: What the console shows: ``"brief"`` (at most 15 lines at the end of a run, and one at the end of an
            epoch if something changed), ``"full"`` (everything) or ``"off"``. None: the environment variable
            ``LIGHTNING_PERF_CONSOLE``, else ``"brief"``.
        out_dir: Where ``perf_session.json`` goes; None for the first logger's folder, or ``perf_logs/<time>`` where
            there is no logger.
        arithmetic: Whether to count the operations and the memory traffic of one training step (exactly as it would
            have run, only slower; it counts in no statistic).
        ceilings: Whether the device may be measured, once for all runs on it: by a process of its own, after the last
            step of a run of some minutes, on one rank. What was measured before is read either way.
        replay: Whether to measure expected speedups: at the end of an epoch or of ``fit``, operators of one step are
            run again on random tensors of the same shapes, as they are and as a recommended treatment would run them.
            It takes at most 1 % of the run, at least 0.5 s and at most 10 s, and changes nothing of the training.
            False: such recommendations come without an expected speedup.
        memory: Whether to read memory use.
        memory_snapshot: Also record torch's history of allocations (CUDA; a bounded number, with Python stacks) and
            write it for torch's own viewer when the run ends or memory runs out. It slows every allocation down.
        device_stats: Whether to use the device's own clock (events; never a synchronisation), and to sample device and
            host beside the training (about once a second, in a thread that uses at most 0.5 % of a core once the
            first seconds are over).
        probe_data: Whether to measure the training loader, in a child process that works on copies: what a sample
            costs, which lines of the dataset cost it, and how long a step takes with other numbers of workers.
            ``"auto"``: at the end of a ``fit`` that waited for data over 20 % of its time, for at most 1 %
            of that time and at most 5 s; a fit of less than 50 s is not probed, nor is a loader that holds locks, files
            or connections, and data that writes files or connects to something ends the probe. True: for up to 20 s, at
            the end of the first epoch that waited for over 5 %, with more detail and without these limits. The training
            pauses meanwhile. False, the default: only a few batches are timed.
        select: Codes or prefixes of the rules to run, e.g. ``["PD1"]``; None for all.
        ignore: Codes or prefixes of rules to leave out; the longest match decides.
        profiler: What windows record, as keyword arguments of ``WindowOptions``: ``with_stack``, ``record_shapes``,
            ``profile_memory``, ``with_flops``, ``ranks``, ``stages``, ``skip_first``, ``emit``, ``export_stacks``,
            ``max_events``. None for the defaults.
        price_per_hour: What the whole run costs an hour, in any currency: reports then tell what the run and each
            finding cost. None to leave money out.
        gco2_per_kwh: Grams of CO2 equivalent by kWh of electricity; or a country as three letters (``"FRA"``), for
            codecarbon's table (the extra ``carbon``). None to leave it out.
        progress: Whether Lightning's progress bar also shows which part of the last steps waited for data, and the
            latest verdict: worked out at most once a second, when the bar collects its own figures.
        host_lines: Whether to sample which lines of your code the training thread spends its time in: in short bursts,
            for at most 0.5 % of the run, by a thread that reads its stack.
        module_depth: How deep modules are told apart where their times are told: 1 for the top-level ones, 0 for none
            of the looks at single steps that tell modules' times, synchronising lines and loops over tensors.
        apply: Treatments to apply at the start of the epoch after a finding asked for them, e.g.
            ``("loader-workers",)`` or ``("loader-workers=4",)``: those that can be changed between epochs. The session
            says what was applied and when; everything is put back when the run ends.

    Attributes:
        session: The latest session; None before the first run.

    Raises:
        ConfigError: An argument cannot be used as given.
    """

    def __init__(
        self,
        schedule: str | list[int] | tuple[int, ...] | None = "auto",
        every_n_epochs: int = 1,
        reports: list[str] | tuple[str, ...] = arguments.REPORTS,
        out_dir: str | Path | None = None,
        memory: bool = True,
        memory_snapshot: bool = False,
        device_stats: bool = True,
        probe_data: bool | str = False,
        select: list[str] | tuple[str, ...] | None = None,
        ignore: list[str] | tuple[str, ...] | None = None,
        profiler: dict[str, Any] | None = None,
        price_per_hour: float | None = None,
        gco2_per_kwh: float | str | None = None,
        apply: list[str] | tuple[str, ...] = (),
        module_depth: int = 1,
        arithmetic: bool = True,
        ceilings: bool = True,
        progress: bool = False,
        host_lines: bool = True,
        replay: bool = True,
        console: str | None = None,
    ) -> None:
        super().__init__()
        self.schedule = arguments.checked_schedule(schedule)
        self.window_options = arguments.checked_window(self.schedule, profiler)
        self.every_n_epochs = arguments.checked_whole("every_n_epochs", every_n_epochs, least=1)
        self.reports = arguments.checked_reports(reports)
        self.console = arguments.checked_console(console)
        if self.console == "off":
            self.reports = tuple(report for report in self.reports if report != "console")
        self.out_dir = arguments.checked_path(out_dir)
        self.arithmetic = arguments.checked_flag("arithmetic", arithmetic)
        self.ceilings = arguments.checked_flag("ceilings", ceilings)
        self.replay = arguments.checked_flag("replay", replay)
        self.progress = arguments.checked_flag("progress", progress)
        self.host_lines = arguments.checked_flag("host_lines", host_lines)
        self.memory = arguments.checked_flag("memory", memory)
        self.memory_snapshot = arguments.checked_flag("memory_snapshot", memory_snapshot)
        self.device_stats = arguments.checked_flag("device_stats", device_stats)
        self.probe_data = arguments.checked_probe_data(probe_data)
        self.select = arguments.checked_codes("select", select)
        self.ignore = arguments.checked_codes("ignore", ignore)
        check_codes(self.select, self.ignore)
        self.rates = arguments.checked_rates(price_per_hour, gco2_per_kwh)
        self.apply = arguments.checked_apply(apply)
        self.module_depth = arguments.checked_whole("module_depth", module_depth, least=0)
        self._forget()

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Makes the state key, which Lightning asks for at each hook, an attribute: it costs less than its property."""
        super().__init_subclass__(**arguments)
        owner = next((each for each in cls.__mro__ if isinstance(vars(each).get("state_key"), str)), None)
        is_default = DoctorHooks in cls.__bases__ or (
            owner is not None and vars(owner)["state_key"] == owner.__qualname__
        )
        if is_default and "state_key" not in vars(cls):
            setattr(cls, "state_key", cls.__qualname__)  # noqa: B010 - a property to a type checker

    def _forget(self) -> None:
        """Reset the state between runs: what one run showed is no diagnosis of the next."""
        self._pid = os.getpid()  # of the process that set the run up
        self.session: Session | None = None
        self._recorder: Recorder | None = None
        self._loop: LoopProbe | None = None
        self._windows: WindowProbe | None = None
        self._memory: MemoryProbe | None = None
        self._looks: StepLooks | None = None
        self._arithmetic: ArithmeticProbe | None = None
        self._live: LiveTreatments | None = None
        self._undos = seams.Undos()
        self._watches_gradients = True
        self._is_silent = False
        self._ranks: RankProbe | None = None
        self._reported: Session | None = None
        self._folder: Path | None = None
        self._probes_off: dict[str, ProbeFailure] = {}
        self._causes_told: set[str] = set()  # of failures: each is worth one warning
        self._logger_reports = LoggerReports()
        self._reporting_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Arguments and findings travel to other processes; what hangs on a Trainer does not."""
        names = ("_recorder", "_loop", "_windows", "_memory", "_looks", "_arithmetic", "_live", "_ranks")
        live: dict[str, Any] = dict.fromkeys(names)
        return {**self.__dict__, **live, "_undos": seams.Undos()}

    # -- the run ------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Hangs the probes in."""
        self._end()  # a run that ended without teardown
        self._forget()
        # These are collective calls: on every rank, whatever else happens.
        log_dir = trainer.log_dir
        stamp = time.strftime("%Y%m%d-%H%M%S")
        if trainer.world_size > 1:
            stamp = trainer.strategy.broadcast(stamp)
        self._is_silent = next((c for c in trainer.callbacks if isinstance(c, DoctorHooks)), self) is not self
        if self._is_silent:
            if trainer.is_global_zero:
                _log.warning(
                    "This Trainer has more than one PerfDoctor: the first one measures, the others do nothing."
                )
            return
        if self.apply and seams.is_fitting(trainer):
            self._live = LiveTreatments(self.apply)
        self._guard("ranks", self._open_ranks, trainer)
        try:
            self._folder = self._choose_folder(trainer, log_dir, stamp)
            self._recorder = Recorder(
                trainer,
                pl_module,
                self,
                getattr(stage, "value", stage),
                wants_memory=self.memory,
                wants_memory_history=self.memory_snapshot,
                wants_arithmetic=self.arithmetic,
                wants_ceilings=self.ceilings,
                wants_replay=self.replay,
                wants_device_clock=self.device_stats,
                wants_data_probe=self.probe_data,
                module_depth=self.module_depth,
                wants_host_lines=self.host_lines,
                on_fail=self._switch_off,
                rates=self.rates,
            )
            self._loop = self._recorder.loop
            self._loop.on_lost = partial(self._last_hook_raised, trainer)
            seams.tap_end_of_run(self._run_is_lost, self._undos)
            self._recorder.start()
            self._memory = self._recorder.memory if self._recorder.stage == "fit" else None
            self._looks = self._recorder.looks
            self._arithmetic = self._recorder.arithmetic
            self._guard("telemetry", self._recorder.start_telemetry)
            if self.progress:
                self._guard("progress", self._show_progress, trainer, self._loop)
            if self.window_options is not None and not trainer.fast_dev_run:
                self._recorder.open_windows(self.window_options, self._folder, self._is_worth_keeping)
                self._windows = self._recorder.windows
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
        if self._recorder is not None:
            self._guard("settings", self._recorder.loops_ready)
            if self._ranks is not None:
                self._guard("ranks", self._ranks.loops_ready, self._recorder.loop)
            self._guard("preflight", self._look_ahead, trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """The same where validation is all there is; within a fit a profiler window ends here."""
        if self._recorder is not None and self._recorder.stage != "fit":
            self._guard("settings", self._recorder.loops_ready)
        elif self._windows is not None:
            self._guard("windows", self._windows.validation_begins)
            self._attend_to_next_step()

    on_test_start = on_validation_start
    on_predict_start = on_validation_start

    # -- steps ------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A step begins; most steps are only timed."""
        loop = self._loop
        if loop is None:
            return
        main = loop.main
        if batch_idx == 0 or main.n_steps >= loop.next_close_step or main.is_in_batch:
            self._close_step_begins(loop, batch, batch_idx)
            return
        try:
            main.batch_begins(batch)
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            self._switch_off("steps", error)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A step is over."""
        loop = self._loop
        if loop is None:
            return
        if loop.is_close_step:
            self._close_step_ends(loop, batch)
            return
        try:
            loop.main.batch_ends(batch)
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            self._switch_off("steps", error)

    def _close_step_begins(self, loop: LoopProbe, batch: Any, batch_idx: int) -> None:
        """A step that more than the clock attends to."""
        loop.is_close_step = True
        if loop.main.is_in_batch:  # nobody called the hook at the end of the last step
            self._guard("steps", loop.main.batch_ends)
        self._guard("steps", loop.batch_begins, batch)
        if self._memory is not None:
            self._guard("memory", self._memory.batch_begins, batch)
        if self._windows is not None:
            self._guard("windows", self._windows.step)
        if self._arithmetic is not None:
            self._guard("arithmetic", self._arithmetic.batch_begins, batch)
        if self._ranks is not None:
            self._guard("ranks", self._ranks.batch_begins)
        if self._looks is not None:
            self._looks.batch_begins()
        if batch_idx == 0 and self._recorder is not None and self._recorder.telemetry is not None:
            self._guard("telemetry", self._recorder.telemetry.first_batch, batch)

    def _close_step_ends(self, loop: LoopProbe, batch: Any) -> None:
        """It is over."""
        loop.is_close_step = False
        if self._memory is not None:
            self._guard("memory", self._memory.batch_ends)
        if self._arithmetic is not None:
            self._guard("arithmetic", self._arithmetic_ends, self._arithmetic)
        self._guard("steps", loop.batch_ends, batch)
        attentive = (self._memory, self._windows, self._arithmetic, self._looks, self._ranks)
        loop.next_close_step = min((probe.next_step for probe in attentive if probe is not None), default=NEVER)
        if self._windows is not None and self._windows.next_step <= loop.main.n_steps:
            self._attend_to_next_step()  # asked for by another thread between these lines

    def _attend_to_next_step(self) -> None:
        if self._loop is not None:
            self._loop.next_close_step = 0

    def _arithmetic_ends(self, arithmetic: ArithmeticProbe) -> None:
        arithmetic.batch_ends()
        if arithmetic.is_done:
            self._arithmetic = None

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Watches the first steps' gradients: are they cleared?"""
        if not self._watches_gradients:
            return
        if self._ranks is not None:
            self._guard("ranks", self._ranks.before_backward)
        watch = self._recorder.zero_grad_watch if self._recorder is not None else None
        if watch is not None and not watch.is_done:
            self._guard("gradients", watch.before_backward)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Likewise, and what this rank waited for others."""
        if not self._watches_gradients:
            return
        if self._ranks is not None:
            self._guard("ranks", self._ranks.after_backward)
        watch = self._recorder.zero_grad_watch if self._recorder is not None else None
        if watch is not None and not watch.is_done:
            self._guard("gradients", watch.after_backward)
        elif watch is None or watch.n_optimizers < len(trainer.optimizers):
            return  # another optimizer may come
        elif self._ranks is None and self._loop is not None:
            self._watches_gradients = False
            self._guard("steps", self._loop.leave_own_hooks_untimed, _GRADIENT_HOOKS)

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Likewise."""
        if not self._watches_gradients:
            return
        watch = self._recorder.zero_grad_watch if self._recorder is not None else None
        if watch is not None and not watch.is_done:
            self._guard("gradients", watch.before_zero_grad, optimizer)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A batch of validation, testing or prediction begins."""
        if self._loop is not None and self._recorder is not None:
            try:
                self._recorder.evaluation_begins(batch)
            except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
                self._switch_off("steps", error)
            if self._windows is not None and self._recorder.stage != "fit":
                self._guard("windows", self._windows.step)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """It is over."""
        if self._loop is not None and self._recorder is not None:
            try:
                self._recorder.evaluation_ends(outputs)
            except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
                self._switch_off("steps", error)

    on_test_batch_start = on_validation_batch_start
    on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_predict_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The last batch of validation, testing or prediction is over; what follows is no batch's time."""
        if self._loop is not None and self._recorder is not None:
            self._guard("steps", self._recorder.evaluation_epoch_ends)

    on_test_epoch_end = on_validation_epoch_end
    on_predict_epoch_end = on_validation_epoch_end

    # -- epochs ------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Applies what the last diagnosis asked for, if allowed to."""
        live = self._live
        if live is None:
            return
        requests: list[Any] = []
        if trainer.is_global_zero:
            self._guard("apply", lambda: requests.extend(live.requests(self.session)))
        if trainer.world_size > 1:  # every rank changes the same; a collective, so outside of any guard
            requests = trainer.strategy.broadcast(requests)
        self._guard("apply", live.apply, requests, trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Diagnoses."""
        if self._loop is not None:
            self._guard("steps", self._loop.epoch_ends)
            self._guard("steps", self._loop.main.reporting, True)
        if self._recorder is not None:
            self._guard("telemetry", self._recorder.train_epoch_ended)
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            if self._recorder is not None:
                self._guard("loader", self._recorder.epoch_ended, False)
            self._share(is_last=False)
            if self._recorder is not None and self._can_afford_report():
                started_s = time.perf_counter()
                self._guard("replay", self._replay, self._recorder)
                self._guard("session", self._report_epoch, trainer)
                self._reporting_s += time.perf_counter() - started_s
        if self._loop is not None:
            self._guard("steps", self._loop.main.reporting, False)

    def _show_progress(self, trainer: Any, loop: LoopProbe) -> None:
        figures = BarFigures(
            loop.main.recent_wait_share, lambda: self.session.verdict if self.session else None, time.perf_counter
        )

        def shown() -> dict[str, str]:
            try:
                return {} if "progress" in self._probes_off else figures()
            except Exception as error:  # noqa: BLE001 - reported; the bar shows its own
                self._switch_off("progress", error)
                return {}

        seams.tap_progress_bar(trainer, shown, self._undos)

    def _can_afford_report(self) -> bool:
        """Whether reporting keeps to its share of the run, as it does not at the end of very short epochs."""
        wall_s = self._loop.wall_ns() / 1e9 if self._loop is not None else 0.0
        return self._reporting_s <= max(_REPORTING_ALLOWED_S, _REPORTING_SHARE * wall_s)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last time at which loggers take figures, and at which all ranks are known to be there."""
        recorder = self._recorder
        if recorder is not None:
            # What a probe of the loader takes at the end of a run is no part of the training's time.
            self._guard("steps", recorder.loop.main.reporting, True)
            self._guard("loader", recorder.epoch_ended, True)
            if not trainer.fast_dev_run:
                self._guard("replay", self._replay, recorder)
            self._guard("steps", recorder.loop.main.reporting, False)
            if self._memory is not None:
                self._guard("memory snapshot", self._memory.run_ends, None if trainer.fast_dev_run else self._folder)
            if recorder.arithmetic is not None and not trainer.fast_dev_run:
                self._guard("arithmetic", recorder.arithmetic.run_ends)
        self._share(is_last=True)

    def _replay(self, recorder: Recorder) -> None:
        """Measure in this pause what rules would otherwise have to guess."""
        if recorder.replay is not None:
            recorder.answer(hypotheses(self._session_now(), self.select, self.ignore))

    def profile_now(self) -> None:
        """Opens a profiler window at the next step; does nothing where windows are off or no run is under way."""
        if self._windows is not None:
            self._windows.request()
            self._attend_to_next_step()

    def _is_worth_keeping(self, trace: TraceRecord) -> bool:
        """Whether a trace says something that the session without it does not."""
        recorder = self._recorder
        if recorder is None:
            return False
        session = recorder.session()
        window = Window(first_step=0, n_steps=0, status="recorded", reason="", cost_s=0.0, trace=trace)
        looked = msgspec.structs.replace(session, windows=(*session.windows, window))
        before, after = (diagnose(one, self.select, self.ignore).findings for one in (session, looked))
        return bool({f.code for f in after} - {f.code for f in before})

    # -- inside ------------------------------------------------------------

    def _look_ahead(self, trainer: Any) -> None:
        """Tells what the settings alone make likely."""
        if not trainer.is_global_zero or "console" not in self.reports:
            return
        session = self._session_now()
        likely = preflight(session, self.select, self.ignore)
        if likely:
            brief_of = None if self.console == "full" else session
            self._print(trainer, lambda: console_report.preflight_report(likely, brief_of))

    def _report_epoch(self, trainer: Any) -> None:
        session = self._diagnosed("running", None)
        if not trainer.is_global_zero:
            return
        reports = self._active_reports(trainer)
        if "console" in reports:
            self._print(trainer, lambda: self._epoch_report(session, trainer.current_epoch))
        if "tensorboard" in self.reports and not trainer.fast_dev_run:
            self._guard("loggers", self._logger_reports.write, trainer, session, self._guard)
        if "json" in reports:
            self._guard("json", self._save, session)

    def _epoch_report(self, session: Session, epoch: int) -> Any:
        """Return what the console shows of an epoch; None if nothing."""
        report: Any
        if self.console == "full":
            report = console_report.epoch_report(session, epoch, self._reported)
        else:
            report = console_report.brief_epoch(session, epoch, self._reported)
        if report is not None:
            self._reported = session
        return report

    def _diagnosed(self, status: Status, error: BaseException | None) -> Session:
        """The session up to now, with findings."""
        session = self._session_now(status, error)
        applied = self._live.applied if self._live is not None else ()
        if self._ranks is not None:
            missing = {**session.missing, **self._ranks.reasons()}
            session = msgspec.structs.replace(session, ranks=self._ranks.ranks, missing=missing)
        return self._diagnose(msgspec.structs.replace(session, applied=applied))

    def _session_now(self, status: Status = "running", error: BaseException | None = None) -> Session:
        """What the probes know; where that cannot be put together, what stands without them."""
        assert self._recorder is not None
        try:
            return self._recorder.session(status, error)
        except Exception as failure:  # noqa: BLE001 - reported
            self._switch_off("session", failure)
            return self._recorder.bare_session(status, error)

    def _diagnose(self, session: Session) -> Session:
        """The session with the failures up to now and, unless that is what fails, its findings."""
        session = msgspec.structs.replace(session, probes_off=tuple(self._probes_off.values()))
        if "diagnosis" not in self._probes_off:
            try:
                session = diagnose(session, self.select, self.ignore)
            except Exception as error:  # noqa: BLE001 - reported
                self._switch_off("diagnosis", error)
                session = msgspec.structs.replace(session, probes_off=tuple(self._probes_off.values()))
        self.session = session
        return session

    def _open_ranks(self, trainer: Any) -> None:
        self._ranks = RankProbe(trainer) if trainer.world_size > 1 else None

    def _share(self, is_last: bool) -> None:
        """Brings all ranks' figures together; a rank whose own probes failed takes part too."""
        if self._ranks is not None and not self._is_silent:
            try:
                self._ranks.share(self._loop, is_last, self.session.findings if self.session is not None else ())
            except Exception as error:  # noqa: BLE001 - reported
                self._switch_off("ranks", error)

    def _finish(self, trainer: Any, status: Status, error: BaseException | None = None) -> None:
        if os.getpid() != self._pid:  # a child that the user's code forked and that leaves through here
            return
        try:
            self._conclude(trainer, status, error)
        except BaseException:  # an interrupt: Lightning may call no other hook of ours
            self._end(error)
            raise

    def _last_hook_raised(self, trainer: Any, error: BaseException, is_own: bool) -> None:
        """End the run: a callback's ``on_exception`` raised, and Lightning calls no further hook."""
        try:
            self._finish(trainer, "failed", error)
        finally:
            if is_own and (not isinstance(error, Exception) or is_from_signal(error)):  # an interrupt
                seams.tear_down(trainer)

    def _run_is_lost(self) -> None:
        """The run is over, and none of the hooks that end it was called."""
        if os.getpid() != self._pid:
            return
        try:
            self._end()
        except BaseException:  # noqa: BLE001 - called by the interpreter, which has nobody to hand it to
            _log.debug("restoring what was patched failed", exc_info=True)
        self._release()

    def _release(self) -> None:
        """Drop all references to the Trainer and its module."""
        for name in ("log", "log_dict"):  # Lightning sets them for each run
            vars(self).pop(name, None)
        self._recorder = self._loop = self._windows = self._memory = None
        self._looks = self._arithmetic = self._ranks = None

    def _conclude(self, trainer: Any, status: Status, error: BaseException | None) -> None:
        if self._recorder is None:
            self._end(error)
            self._release()
            return
        if self._loop is not None:
            self._guard("steps", self._loop.run_ends)
        if error is not None and self._memory is not None:
            folder = None if trainer.fast_dev_run else self._folder
            self._guard("memory", self._memory.out_of_memory, error, folder)
        if error is not None and self._ranks is not None and self._loop is not None:
            found = self.session.findings if self.session is not None else ()
            self._guard("ranks", self._ranks.end_alone, self._loop, found)
        self._end(error)
        self._guard("report", self._report_run, trainer, status, error)
        self._guard("post-mortem on screen", self._print_post_mortem, trainer)
        self._release()

    def _print_post_mortem(self, trainer: Any) -> None:
        """Print what is known where memory ran out, last of all."""
        session = self.session
        is_shown = "console" in self.reports and self.console == "full"
        if session is not None and session.memory.oom is not None and is_shown:
            self._print(trainer, lambda: console_report.post_mortem(session))

    def _with_post_mortem(self, session: Session) -> Session:
        """Write the file on the rank whose memory ran out; return the session, which names no file if that fails."""
        oom = session.memory.oom
        if oom is None or oom.post_mortem_file is None:
            return session
        self._guard("post-mortem", self._write_post_mortem, session, oom.post_mortem_file)
        if "post-mortem" not in self._probes_off:
            return session
        memory = msgspec.structs.replace(session.memory, oom=msgspec.structs.replace(oom, post_mortem_file=None))
        return self._diagnose(msgspec.structs.replace(session, memory=memory))

    def _write_post_mortem(self, session: Session, name: str) -> None:
        text = console_report.to_text(console_report.post_mortem(session), width=100)
        self._write(name, text.encode())

    def _end(self, error: BaseException | None = None) -> None:
        """Restore everything that was patched, also where an interrupt comes meanwhile."""
        seams.run_to_the_end(self._restore, error)

    def _restore(self, error: BaseException | None) -> None:
        if self._live is not None:
            self._guard("undo", self._live.undo)
        if self._ranks is not None:
            self._guard("ranks teardown", self._ranks.close)
        if self._recorder is not None:
            self._guard("teardown", self._recorder.stop, error)
        self._guard("restoring", self._undos.close)  # last: until then the end of the run is watched for

    def _report_run(self, trainer: Any, status: Status, error: BaseException | None) -> None:
        session = self._with_post_mortem(self._diagnosed(status, error))
        reports = self._active_reports(trainer)
        if not trainer.is_global_zero:
            if "json" in reports:
                self._guard("json", self._save, session)
            return
        if "console" in reports and (session.run.n_steps > 0 or session.memory.oom is not None):
            self._print(trainer, lambda: self._run_report(session, is_saved="json" in reports))
        if "html" in reports:
            self._guard("html", self._write_page, session)
        # A report that fails belongs into the record too.
        if len(self._probes_off) > len(session.probes_off):
            session = self._diagnose(session)
        if "json" in reports:
            self._guard("json", self._save, session)
        elif "json" in self.reports and not trainer.fast_dev_run:  # it failed before: a disk may have room again
            self._guard("last save", self._save, session)
        if len(self._probes_off) > len(session.probes_off):
            self._diagnose(session)

    def _run_report(self, session: Session, is_saved: bool) -> Any:
        place = console_report.short_path(self._session_path(session)) if is_saved else None
        if self.console == "full":
            return console_report.run_report(session, place=place) if session.run.n_steps > 0 else None
        return console_report.brief_report(session, place)

    def _print(self, trainer: Any, make_report: Callable[[], Any]) -> None:
        def show() -> None:
            report = make_report()
            if report is not None:
                console_report.emit(report, console=seams.live_console(trainer))

        self._guard("console", show)

    def _write_page(self, session: Session) -> None:
        from lightning_perf.reports.render.html import (
            to_page,  # plotly, which no run needs that does not ask for a page
        )

        name = f"{self._session_path(session).stem.replace('session', 'report')}.html"
        place = console_report.short_path(self._session_path(session))
        self._write(name, to_page(session, place).encode())

    def _write(self, name: str, content: bytes) -> None:
        """Write a file into the run's folder; raises ``OSError`` where that would fill the disk."""
        assert self._folder is not None
        require_room(self._folder, len(content))
        write_whole(self._folder / name, content)

    def _save(self, session: Session) -> None:
        assert self._folder is not None
        require_room(self._folder, 0)  # a session is small beside the reserve
        session.save(self._session_path(session))

    def _active_reports(self, trainer: Any) -> tuple[str, ...]:
        """A trial run of a few batches leaves no files behind."""
        wanted = tuple(report for report in self.reports if report not in self._probes_off)
        return tuple(r for r in wanted if r == "console") if trainer.fast_dev_run else wanted

    def _choose_folder(self, trainer: Any, log_dir: str | None, stamp: str) -> Path:
        if self.out_dir is not None:
            return self.out_dir
        if trainer.loggers and log_dir:
            return Path(log_dir)
        return Path(trainer.default_root_dir) / "perf_logs" / stamp

    def _session_path(self, session: Session) -> Path:
        assert self._folder is not None
        name = SESSION_FILE if session.run.stage == "fit" else f"perf_session_{session.run.stage}.json"
        if session.run.rank == 0:
            return self._folder / name
        return self._folder / RANKS_FOLDER / f"{Path(name).stem}.rank{session.run.rank}.json"

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
        raise_if_from_signal(error)
        if probe in self._probes_off:
            return
        recorder = self._recorder
        step = recorder.loop.main.n_steps if recorder is not None else 0
        failure = ProbeFailure(probe=probe, error=f"{type(error).__name__}: {error}", step=step)
        cause = _cause_of(error)
        is_news = cause not in self._causes_told
        self._causes_told.add(cause)
        self._probes_off[probe] = failure
        _log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "PerfDoctor switched its probe %r off for this run (%s); the training is not affected.",
            probe,
            failure.error,
            exc_info=_log.isEnabledFor(logging.DEBUG),
        )
        if probe == "memory":
            self._memory = None
        if probe in ("looks", "setup", "steps"):
            self._looks = None
        if probe in ("ranks", "setup", "steps") and self._ranks is not None:
            self._guard("ranks teardown", self._ranks.close)
        if probe == "arithmetic":
            self._arithmetic = None
            if recorder is not None and recorder.arithmetic is not None:
                self._guard("arithmetic teardown", recorder.arithmetic.close)
        if probe in ("windows", "setup", "steps"):
            self._windows = None
        if probe in ("setup", "steps") and recorder is not None:
            self._loop = self._memory = self._arithmetic = None
            self._guard("teardown", recorder.give_up)


def _cause_of(error: Exception) -> str:
    """Return what made something fail: the same for every file that the same folder or disk refuses."""
    cause = error.__cause__ or error
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number is not None else f"{type(cause).__name__}: {cause}"
