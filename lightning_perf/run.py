"""One run of a PerfDoctor, from ``setup`` to its end: opens the probes, diagnoses, and restores what was patched."""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_perf import seams
from lightning_perf.autopilot import Autopilot
from lightning_perf.diagnosis_schedule import DiagnosisSchedule
from lightning_perf.history.run_history import RunHistory
from lightning_perf.history.store import default_file
from lightning_perf.interrupts import is_from_signal
from lightning_perf.live import LiveTreatments
from lightning_perf.probes.base import RunContext
from lightning_perf.probes.clock import now_ns
from lightning_perf.probes.probe_set import ProbeSet, Status
from lightning_perf.probes.ranks.probe import RankProbe
from lightning_perf.probes.replay.probe import ReplayProbe
from lightning_perf.probes.sampled_steps.probe import SampledSteps
from lightning_perf.probes.settings.machine import local_world_size, read_machine
from lightning_perf.probes.timeline.loop import LoopTimer
from lightning_perf.probes.timeline.steps import open_loop
from lightning_perf.progress import BarFigures
from lightning_perf.records import Machine, Session, TraceRecord, Window
from lightning_perf.rules.engine import diagnose, hypotheses, preflight
from lightning_perf.rules.stability import with_stable_advice
from lightning_perf.run_reports import RunReports

if TYPE_CHECKING:
    from .hooks import DoctorHooks

_log = logging.getLogger("lightning_perf")


class DoctorRun:
    """Opens, diagnoses and ends one run; ``on_end`` is called afterwards, to drop all references to the Trainer.

    Attributes:
        ranks: Collects the figures of all ranks; None with one rank.
        live: Applies treatments between epochs or steps; None if no treatment may be applied.
        autopilot: Tries treatments; None if it is off.
        schedule: When to diagnose within an epoch; None for never.
        history: Earlier runs of this training.
    """

    def __init__(self, doctor: "DoctorHooks", trainer: Any, probes: ProbeSet, on_end: Callable[[], None]) -> None:
        self.probes = probes
        self.ranks: RankProbe | None = None
        self.live: LiveTreatments | None = None
        self.autopilot: Autopilot | None = None
        self.schedule: DiagnosisSchedule | None = None
        self.reports = RunReports(doctor, trainer, probes)
        self.history = RunHistory(None)
        self._doctor, self._trainer, self._on_end = doctor, trainer, on_end
        self._has_ranks = trainer.world_size > 1 and seams.has_trainer(trainer)
        self._undos = seams.Undos()
        self._pid = os.getpid()  # the process that opened the run

    # -- the beginning ------------------------------------------------------------------------------------------------

    def open(self, pl_module: Any, stage: str) -> None:
        """Open the probes; their errors do not reach the training."""
        doctor, trainer, probes = self._doctor, self._trainer, self.probes
        # These are collective calls, which every rank must make.
        folder = self.reports.default_folder(trainer.log_dir)
        if self._has_ranks:
            folder = trainer.strategy.broadcast(folder)
        if (doctor.apply or doctor.autopilot) and seams.is_fitting(trainer):
            self.live = LiveTreatments(doctor.apply)
            if doctor.autopilot and seams.has_trainer(trainer) and not trainer.fast_dev_run:
                taken = frozenset(text.partition("=")[0] for text in doctor.apply)
                self.autopilot = Autopilot(doctor.autopilot, trainer, probes, self.live, taken, self._autopilot_acted)
        if self._has_ranks:
            self.ranks = probes.call("ranks", RankProbe, trainer)
            if self.ranks is not None:
                probes.add(self.ranks)
        if stage == "fit" and trainer.is_global_zero and not trainer.fast_dev_run:
            self.history = RunHistory(default_file())
        try:
            self.reports.open(folder)
            self._open_probes(pl_module, stage)
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            probes.switch_off("setup", error)

    def _open_probes(self, pl_module: Any, stage: str) -> None:
        doctor, trainer, probes, options = self._doctor, self._trainer, self.probes, self._doctor.options
        device, ranks = trainer.strategy.root_device, local_world_size(trainer)
        machine = probes.call("machine", read_machine, ranks, device=device)
        loop, missing = open_loop(trainer, pl_module, doctor, stage, probes, wants_device=options.device_stats)
        loop.on_lost = self._last_hook_raised
        context = RunContext(
            trainer=trainer,
            pl_module=pl_module,
            stage=stage,
            options=options,
            loop=loop,
            now_ns=now_ns,
            probes=probes,
            folder=None if trainer.fast_dev_run else self.reports.folder,
            shared_folder=self.reports.shared_folder,
            window_options=doctor.window_options,
            is_worth_keeping=self._is_worth_keeping,
            probe_data=doctor.probe_data,
            rates=doctor.rates,
            machine=machine or Machine(os=sys.platform, python=sys.version.split()[0]),
            missing=missing,
            show_hang=self.reports.hang,
            has_history=self.history.is_kept,
        )
        probes.begin(context)
        seams.tap_end_of_run(self._end_without_hooks, self._undos)
        probes.open_all()
        if stage == "fit" and trainer.is_global_zero and not trainer.fast_dev_run:
            self.schedule = DiagnosisSchedule(loop, now_ns)
            probes.add(self.schedule)
        if self.autopilot is not None:
            probes.add(self.autopilot.randoms)
        if options.progress:
            probes.call("progress", self._show_progress, loop)

    def loops_ready(self) -> None:
        """Read the settings: loaders, model and optimizers exist now."""
        context = self.probes.context
        if context is None:
            return
        self.probes.notify("loops_ready", context)
        if context.stage == "fit":
            self.probes.call("preflight", self._preflight)

    def _preflight(self) -> None:
        if self._trainer.is_global_zero and "console" in self._doctor.reports:
            session = self.probes.session()
            self.reports.preflight(preflight(session, self._doctor.select, self._doctor.ignore), session)

    def _show_progress(self, loop: LoopTimer) -> None:
        figures = BarFigures(loop.main.recent_wait_share, lambda: self._doctor.verdict, time.perf_counter)
        seams.tap_progress_bar(self._trainer, lambda: self.probes.call("progress", figures) or {}, self._undos)

    # -- during the run -----------------------------------------------------------------------------------------------

    def apply_treatments(self, pl_module: Any, is_within_epoch: bool = False) -> None:
        """Apply the recommendations of the last diagnosis, if allowed to."""
        live, trainer = self.live, self._trainer
        if live is None:
            return
        requests: list[Any] = []
        if trainer.is_global_zero and not (self.autopilot is not None and self.autopilot.holds_loaders):
            requests = self.probes.call("apply", live.requests, self._doctor.session, is_within_epoch) or []
        if self._has_ranks:  # a collective call, so not isolated
            requests = trainer.strategy.broadcast(requests)
        self.probes.call("apply", live.apply, requests, trainer, pl_module)
        if self.autopilot is not None and not is_within_epoch:
            self.autopilot.epoch_starts(pl_module)

    def _autopilot_acted(self, line: str | None) -> None:
        """Print a decision of the autopilot, and save what it tries now, since the run may be killed."""
        if line is not None:
            self.reports.news(line)
        if self._doctor.session is not None:
            self._doctor.session = self._with_treatments(self._doctor.session)
            self.reports.save(self._doctor.session)

    def _with_treatments(self, session: Session) -> Session:
        """Return the session with what was changed in this run."""
        applied = self.live.applied if self.live is not None else ()
        tried = self.probes.call("autopilot record", self.autopilot.record) if self.autopilot is not None else None
        return msgspec.structs.replace(session, applied=applied, autopilot=tried)

    def step_ended(self, pl_module: Any) -> None:
        """Diagnose within the epoch if that is due; apply what can be changed between two steps."""
        probes, schedule, trainer = self.probes, self.schedule, self._trainer
        if schedule is None or not schedule.is_due or probes.loop is None or seams.is_preempted(trainer):
            return
        loop, begin_ns = probes.loop, now_ns()
        self._reporting(True)
        if self.autopilot is not None:
            self.autopilot.collect()
        with loop.diagnosing:
            probes.call("overhead", probes.keep_to_budget)
            probes.call("session", self._report_running, is_within=True)
            if trainer.world_size == 1:  # other ranks would not apply the same
                self.apply_treatments(pl_module, is_within_epoch=True)
        self._reporting(False)
        probes.call("steps", loop.main.pause)
        probes.call(schedule.name, schedule.diagnosed, now_ns() - begin_ns)

    def epoch_ends(self, is_due: bool) -> None:
        """Diagnose and report an epoch if that is due, unless the run must end."""
        probes = self.probes
        if probes.loop is not None:
            probes.call("steps", probes.loop.epoch_ends)
        self._reporting(True)
        probes.notify("epoch_ends")
        if is_due:
            probes.notify("before_report", False)
            self._share(is_last=False)
            wall_s = probes.loop.wall_ns() / 1e9 if probes.loop is not None else 0.0
            has_time = self.reports.can_afford_epoch(wall_s) and not seams.is_preempted(self._trainer)
            if probes.context is not None and has_time:
                probes.call("overhead", probes.keep_to_budget)
                began_s = time.perf_counter()
                probes.call("replay", self._replay)
                probes.call("session", self._report_running, is_within=False)
                self.reports.spent_s += time.perf_counter() - began_s
                if self.schedule is not None:
                    probes.call(self.schedule.name, self.schedule.diagnosed)
        self._reporting(False)

    def _reporting(self, is_on: bool) -> None:
        """Count the time from now on as reporting, or as training again."""
        if self.probes.loop is not None:
            self.probes.call("steps", self.probes.loop.main.reporting, is_on)

    def _report_running(self, is_within: bool) -> None:
        """Diagnose and report an epoch, or within it, and once what became slower since earlier runs."""
        session = self._diagnosed("running", None)
        if self.autopilot is not None and self._trainer.is_global_zero:
            self.probes.call("autopilot", self.autopilot.offer, session)
        news = self.probes.call("history", self.history.news, session)
        self.reports.epoch(session, news, is_within)
        self.probes.call("history", self.history.save, session)

    def training_ends(self) -> None:
        """Measure what needs a pause, while all ranks still run."""
        self._reporting(True)  # the time of the loader probe is not training time
        self.probes.notify("before_report", True)
        if not self._trainer.fast_dev_run:
            self.probes.call("replay", self._replay)
        # Time stays excluded from here on: what follows happens once per run, such as moving the module to the host.
        self.probes.notify("training_ends")
        self._share(is_last=True)

    def _share(self, is_last: bool) -> None:
        """Collect the figures of all ranks; a rank whose probes failed takes part too."""
        if self.ranks is not None:
            try:
                self.ranks.share(self.probes.loop, is_last, self._doctor.findings)
            except Exception as error:  # noqa: BLE001 - reported
                self.probes.switch_off("ranks", error)

    # -- the diagnosis ------------------------------------------------------------------------------------------------

    def _diagnosed(self, status: Status, error: BaseException | None) -> Session:
        """Return the session up to now, with findings."""
        session = self._with_treatments(self.probes.session(status, error))
        earlier = self.probes.call("history", self.history.earlier, session)
        return self._diagnose(msgspec.structs.replace(session, earlier=earlier))

    def _diagnose(self, session: Session) -> Session:
        """Return the session with the failures so far and its findings; without findings if the diagnosis fails."""
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
        """Replay operators, to measure speedups that rules would otherwise estimate."""
        replay, sampled = self.probes.find(ReplayProbe), self.probes.find(SampledSteps)
        if replay is not None and sampled is not None and self.probes.context is not None:
            asked = hypotheses(self.probes.session(), self._doctor.select, self._doctor.ignore)
            replay.answer(asked, sampled.call_log, self.probes.context.loop.wall_ns() / 1e9)

    def _is_worth_keeping(self, trace: TraceRecord) -> bool:
        """Return whether a trace leads to a finding that the session does not have without it."""
        session = self.probes.session()
        window = Window(first_step=0, n_steps=0, status="recorded", reason="", cost_s=0.0, trace=trace)
        with_trace = msgspec.structs.replace(session, windows=(*session.windows, window))
        doctor = self._doctor
        before, after = (diagnose(one, doctor.select, doctor.ignore).findings for one in (session, with_trace))
        return bool({f.code for f in after} - {f.code for f in before})

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def is_forked(self) -> bool:
        """Whether the user's code forked this process from the one that set the run up."""
        return os.getpid() != self._pid

    def goes_on_without(self, trainer: Any) -> bool:
        """Return whether this run's Trainer is another one, and still runs."""
        is_other = self._trainer is not trainer and seams.has_trainer(self._trainer)
        return is_other and self._trainer.state.status == "running"

    def finish(self, status: Status, error: BaseException | None = None) -> None:
        """Restore everything, diagnose and report."""
        if self.is_forked:
            return
        try:
            self._conclude(status, error)
        except BaseException:  # an interrupt, after which Lightning may call no other hook
            self.restore()
            raise

    def _conclude(self, status: Status, error: BaseException | None) -> None:
        probes = self.probes
        probes.notify("run_ends", error)
        if error is not None and self.ranks is not None and probes.loop is not None:
            probes.call("ranks", self.ranks.end_alone, probes.loop, self._doctor.findings)
        self.restore()
        if probes.context is not None:
            probes.call("report", lambda: self.reports.run(self._diagnosed(status, error), self._diagnose))
            if self._doctor.session is not None:
                probes.call("history", self.history.save, self._doctor.session)
            probes.call("post-mortem on screen", lambda: self.reports.post_mortem(self._doctor.session))
        self.reports.close()  # if they were not made
        self._on_end()

    def restore(self) -> None:
        """Restore everything that was patched, even if an interrupt arrives meanwhile."""
        seams.complete(self._restore)

    def _restore(self) -> None:
        if self.live is not None:
            self.probes.call("undo", self.live.undo)
        self.probes.close()
        self.probes.call("restoring", self._undos.close)  # last: these notice that Lightning left the run

    def _last_hook_raised(self, error: BaseException, is_own: bool) -> None:
        """End the run: a callback's ``on_exception`` raised, and Lightning calls no further hook."""
        try:
            self.finish("failed", error)
        finally:
            if is_own and (not isinstance(error, Exception) or is_from_signal(error)):  # an interrupt
                seams.tear_down(self._trainer)

    def _end_without_hooks(self) -> None:
        """End a run that Lightning left without calling ``teardown`` or ``on_exception``."""
        if self.is_forked:
            return
        try:
            self.restore()
            self.reports.close()
        except BaseException:  # noqa: BLE001 - called by the interpreter, which would only print it
            _log.debug("ending a run without its hooks failed", exc_info=True)
        self._on_end()
