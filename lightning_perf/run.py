"""One run of a PerfDoctor, from ``setup`` to its end: opens the probes, diagnoses, and restores what was patched."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_perf import seams
from lightning_perf.interrupts import is_from_signal
from lightning_perf.live import LiveTreatments
from lightning_perf.probes.loop import LoopProbe
from lightning_perf.probes.memory import MemoryProbe
from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.probes.ranks import RankProbe
from lightning_perf.probes.recorder import Recorder
from lightning_perf.probes.session_builder import Status
from lightning_perf.probes.window import WindowProbe
from lightning_perf.progress import BarFigures
from lightning_perf.records import Session, TraceRecord, Window
from lightning_perf.rules.engine import diagnose, hypotheses, preflight
from lightning_perf.rules.stability import with_stable_advice
from lightning_perf.run_reports import RunReports

if TYPE_CHECKING:
    from .hooks import DoctorHooks

_log = logging.getLogger("lightning_perf")

_GRADIENT_HOOKS = ("on_before_backward", "on_after_backward", "on_before_zero_grad")


class DoctorRun:
    """Opens, diagnoses and ends one run.

    Args:
        doctor: The callback: its arguments, and the session that the run fills.
        trainer: The Trainer, in its ``setup``.
        probes: An empty set.
        on_end: Called when the run is over, to drop all references to the Trainer.

    Attributes:
        recorder: Holds the single probes; None if setting the run up failed.
        ranks: Brings all ranks together; None with one rank.
        live: Applies treatments between epochs; None if none may be.
        watches_gradients: Whether the hooks around backward have anything left to do.
    """

    def __init__(self, doctor: DoctorHooks, trainer: Any, probes: ProbeSet, on_end: Callable[[], None]) -> None:
        self.probes = probes
        self.recorder: Recorder | None = None
        self.ranks: RankProbe | None = None
        self.live: LiveTreatments | None = None
        self.reports = RunReports(doctor, trainer, probes)
        self.watches_gradients = True
        self._doctor, self._trainer, self._on_end = doctor, trainer, on_end
        self._undos = seams.Undos()
        self._pid = os.getpid()  # of the process that set the run up

    # -- the beginning ------------------------------------------------------------------------------------------------

    def open(self, pl_module: Any, stage: str) -> None:
        """Open the probes; whatever fails, the training goes on."""
        doctor, trainer, probes = self._doctor, self._trainer, self.probes
        # These are collective calls: on every rank, whatever else happens.
        log_dir = trainer.log_dir
        stamp = time.strftime("%Y%m%d-%H%M%S")
        if trainer.world_size > 1:
            stamp = trainer.strategy.broadcast(stamp)
        if doctor.apply and seams.is_fitting(trainer):
            self.live = LiveTreatments(doctor.apply)
        if trainer.world_size > 1:
            self.ranks = probes.call("ranks", RankProbe, trainer)
        try:
            self.reports.open(log_dir, stamp)
            self._open_probes(pl_module, stage)
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            probes.switch_off("setup", error)

    def _open_probes(self, pl_module: Any, stage: str) -> None:
        doctor, trainer, probes, options = self._doctor, self._trainer, self.probes, self._doctor.options
        recorder = self.recorder = Recorder(
            trainer,
            pl_module,
            doctor,
            stage,
            options,
            probe_data=doctor.probe_data,
            rates=doctor.rates,
            on_fail=probes.switch_off,
        )
        probes.start(recorder.loop, recorder.give_up)
        recorder.loop.on_lost = self._last_hook_raised
        seams.tap_end_of_run(self._is_lost, self._undos)
        recorder.start()
        probes.call("telemetry", recorder.start_telemetry)
        if options.progress:
            probes.call("progress", self._show_progress, recorder.loop)
        if doctor.window_options is not None and not trainer.fast_dev_run:
            recorder.open_windows(doctor.window_options, self.reports.folder, self._is_worth_keeping)
        probes.add("memory", recorder.memory if recorder.stage == "fit" else None)
        probes.add("windows", recorder.windows)
        if self.ranks is not None:
            probes.add("ranks", self.ranks, self.ranks.close)
        probes.add("sampled_steps", recorder.sampled_steps)

    def loops_ready(self) -> None:
        """Read the settings: loaders, model and optimizers exist now."""
        recorder = self.recorder
        if recorder is None:
            return
        self.probes.call("settings", recorder.loops_ready)
        if recorder.stage != "fit":
            return
        if self.ranks is not None:
            self.probes.call("ranks", self.ranks.loops_ready, recorder.loop)
        self.probes.call("preflight", self._preflight)

    def _preflight(self) -> None:
        if self._trainer.is_global_zero and "console" in self._doctor.reports:
            session = self.session_now()
            self.reports.preflight(preflight(session, self._doctor.select, self._doctor.ignore), session)

    def _show_progress(self, loop: LoopProbe) -> None:
        figures = BarFigures(loop.main.recent_wait_share, lambda: self._doctor.verdict, time.perf_counter)
        seams.tap_progress_bar(self._trainer, lambda: self.probes.call("progress", figures) or {}, self._undos)

    # -- between ------------------------------------------------------------------------------------------------------

    def windows(self) -> WindowProbe | None:
        """Return the probe of profiler windows; None if it is off."""
        return self.recorder.windows if self.recorder is not None and self.probes.is_observing("windows") else None

    def memory(self) -> MemoryProbe | None:
        """Return the memory probe of a fit; None if it is off."""
        return self.recorder.memory if self.recorder is not None and self.probes.is_observing("memory") else None

    def before_backward(self) -> None:
        """Watch the gradients of the first steps, and what this rank waits for."""
        if self.ranks is not None:
            self.probes.call("ranks", self.ranks.before_backward)
        watch = self.recorder.zero_grad_watch if self.recorder is not None else None
        if watch is not None and not watch.is_done:
            self.probes.call("gradients", watch.before_backward)

    def after_backward(self) -> None:
        """Likewise; once nothing is left to watch, the hooks are not timed any more."""
        if self.ranks is not None:
            self.probes.call("ranks", self.ranks.after_backward)
        watch = self.recorder.zero_grad_watch if self.recorder is not None else None
        if watch is not None and not watch.is_done:
            self.probes.call("gradients", watch.after_backward)
        elif watch is None or watch.n_optimizers < len(self._trainer.optimizers):
            return  # another optimizer may come
        elif self.ranks is None and self.probes.loop is not None:
            self.watches_gradients = False
            self.probes.call("steps", self.probes.loop.leave_own_hooks_untimed, _GRADIENT_HOOKS)

    def before_zero_grad(self, optimizer: Any) -> None:
        """Watch which optimizer clears its gradients."""
        watch = self.recorder.zero_grad_watch if self.recorder is not None else None
        if watch is not None and not watch.is_done:
            self.probes.call("gradients", watch.before_zero_grad, optimizer)

    def apply_treatments(self, pl_module: Any) -> None:
        """Apply what the last diagnosis asked for, if allowed to."""
        live, trainer = self.live, self._trainer
        if live is None:
            return
        requests: list[Any] = []
        if trainer.is_global_zero:
            requests = self.probes.call("apply", live.requests, self._doctor.session) or []
        if trainer.world_size > 1:  # every rank changes the same; a collective, so outside of any isolation
            requests = trainer.strategy.broadcast(requests)
        self.probes.call("apply", live.apply, requests, trainer, pl_module)

    def epoch_begins(self, batch: Any) -> None:
        """Read the size of an epoch's first batch."""
        if self.recorder is not None and self.recorder.telemetry is not None:
            self.probes.call("telemetry", self.recorder.telemetry.first_batch, batch)

    def epoch_ends(self, is_due: bool) -> None:
        """Diagnose and report an epoch if that is due."""
        recorder, probes = self.recorder, self.probes
        if probes.loop is not None:
            probes.call("steps", probes.loop.epoch_ends)
        self._reporting(True)
        if recorder is not None:
            probes.call("telemetry", recorder.train_epoch_ended)
        if is_due:
            if recorder is not None:
                probes.call("loader", recorder.epoch_ended, False)
            self._share(is_last=False)
            wall_s = probes.loop.wall_ns() / 1e9 if probes.loop is not None else 0.0
            if recorder is not None and self.reports.can_afford_epoch(wall_s):
                self.reports.charged(self._report_epoch)
        self._reporting(False)

    def _reporting(self, is_on: bool) -> None:
        """Charge the time from here on to reporting, or to the training again."""
        if self.probes.loop is not None:
            self.probes.call("steps", self.probes.loop.main.reporting, is_on)

    def _report_epoch(self) -> None:
        self.probes.call("replay", self._replay)
        self.probes.call("session", lambda: self.reports.epoch(self._diagnosed("running", None)))

    def training_ends(self) -> None:
        """Measure what needs a pause: all ranks are known to be there for the last time."""
        recorder, probes, is_dry_run = self.recorder, self.probes, bool(self._trainer.fast_dev_run)
        if recorder is not None:
            # What a probe of the loader takes at the end of a run is no part of the training's time.
            probes.call("steps", recorder.loop.main.reporting, True)
            probes.call("loader", recorder.epoch_ended, True)
            if not is_dry_run:
                probes.call("replay", self._replay)
            probes.call("steps", recorder.loop.main.reporting, False)
            memory = self.memory()
            if memory is not None:
                probes.call("memory snapshot", memory.run_ends, None if is_dry_run else self.reports.folder)
            if not is_dry_run:
                probes.call("ceilings", recorder.training_ended)
        self._share(is_last=True)

    def _share(self, is_last: bool) -> None:
        """Bring all ranks' figures together; a rank whose own probes failed takes part too."""
        if self.ranks is not None:
            try:
                self.ranks.share(self.probes.loop, is_last, self._doctor.findings)
            except Exception as error:  # noqa: BLE001 - reported
                self.probes.switch_off("ranks", error)

    # -- the diagnosis ------------------------------------------------------------------------------------------------

    def session_now(self, status: Status = "running", error: BaseException | None = None) -> Session:
        """Return what the probes know; a session without measurements if it cannot be put together."""
        assert self.recorder is not None
        try:
            return self.recorder.session(status, error)
        except Exception as failure:  # noqa: BLE001 - reported
            self.probes.switch_off("session", failure)
            return self.recorder.bare_session(status, error)

    def _diagnosed(self, status: Status, error: BaseException | None) -> Session:
        """Return the session up to now, with findings."""
        session = self.session_now(status, error)
        applied = self.live.applied if self.live is not None else ()
        if self.ranks is not None:
            missing = {**session.missing, **self.ranks.reasons()}
            session = msgspec.structs.replace(session, ranks=self.ranks.ranks, missing=missing)
        return self._diagnose(msgspec.structs.replace(session, applied=applied))

    def _diagnose(self, session: Session) -> Session:
        """Return the session with the failures up to now and, unless diagnosing is what fails, its findings."""
        doctor, failures = self._doctor, self.probes.failures
        session = msgspec.structs.replace(session, probes_off=tuple(failures.values()))
        found = self.probes.call("diagnosis", self._stable_diagnosis, session)
        if found is None:
            found = msgspec.structs.replace(session, probes_off=tuple(failures.values()))
        doctor.session = found
        return doctor.session

    def _stable_diagnosis(self, session: Session) -> Session:
        doctor = self._doctor
        return with_stable_advice(diagnose(session, doctor.select, doctor.ignore), doctor.session)

    def _replay(self) -> None:
        """Measure in a pause what rules would otherwise have to estimate."""
        recorder = self.recorder
        if recorder is not None and recorder.replay is not None:
            recorder.answer(hypotheses(self.session_now(), self._doctor.select, self._doctor.ignore))

    def _is_worth_keeping(self, trace: TraceRecord) -> bool:
        """Return whether a trace says something that the session without it does not."""
        if self.recorder is None:
            return False
        session = self.recorder.session()
        window = Window(first_step=0, n_steps=0, status="recorded", reason="", cost_s=0.0, trace=trace)
        looked = msgspec.structs.replace(session, windows=(*session.windows, window))
        doctor = self._doctor
        before, after = (diagnose(one, doctor.select, doctor.ignore).findings for one in (session, looked))
        return bool({f.code for f in after} - {f.code for f in before})

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, status: Status, error: BaseException | None = None) -> None:
        """Restore everything, diagnose and report."""
        if os.getpid() != self._pid:  # a child that the user's code forked and that leaves through here
            return
        try:
            self._conclude(status, error)
        except BaseException:  # an interrupt: Lightning may call no other hook of ours
            self.restore(error)
            raise

    def _conclude(self, status: Status, error: BaseException | None) -> None:
        if self.recorder is not None:
            self._measure_last(error)
        self.restore(error)
        if self.recorder is not None:
            self.probes.call("report", lambda: self.reports.run(self._diagnosed(status, error), self._diagnose))
            self.probes.call("post-mortem on screen", lambda: self.reports.post_mortem(self._doctor.session))
        self._on_end()

    def _measure_last(self, error: BaseException | None) -> None:
        loop, memory = self.probes.loop, self.memory()
        if loop is not None:
            self.probes.call("steps", loop.run_ends)
        if error is not None and memory is not None:
            folder = None if self._trainer.fast_dev_run else self.reports.folder
            self.probes.call("memory", memory.out_of_memory, error, folder)
        if error is not None and self.ranks is not None and self.probes.loop is not None:
            self.probes.call("ranks", self.ranks.end_alone, self.probes.loop, self._doctor.findings)

    def restore(self, error: BaseException | None = None) -> None:
        """Restore everything that was patched, also where an interrupt comes meanwhile."""
        seams.run_to_the_end(self._restore, error)

    def _restore(self, error: BaseException | None) -> None:
        if self.live is not None:
            self.probes.call("undo", self.live.undo)
        if self.ranks is not None:
            self.probes.call("ranks teardown", self.ranks.close)
        if self.recorder is not None:
            self.probes.call("teardown", self.recorder.stop, error)
        self.probes.call("restoring", self._undos.close)  # last: until then the end of the run is watched for

    def _last_hook_raised(self, error: BaseException, is_own: bool) -> None:
        """End the run: a callback's ``on_exception`` raised, and Lightning calls no further hook."""
        try:
            self.finish("failed", error)
        finally:
            if is_own and (not isinstance(error, Exception) or is_from_signal(error)):  # an interrupt
                seams.tear_down(self._trainer)

    def _is_lost(self) -> None:
        """End the run: Lightning has left it, and called none of the hooks that end it."""
        if os.getpid() != self._pid:
            return
        try:
            self.restore()
        except BaseException:  # noqa: BLE001 - called by the interpreter, which has nobody to hand it to
            _log.debug("restoring what was patched failed", exc_info=True)
        self._on_end()
