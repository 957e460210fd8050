"""The hooks of PerfDoctor, which pass events on to probes, diagnosis and reports.

It imports neither Lightning namespace: `DoctorHooks` is mixed into the ``Callback`` of either.
"""

from __future__ import annotations  # so that ``help(PerfDoctor)`` fits a screen

import logging
from pathlib import Path
from typing import Any

from lightning_perf import arguments, seams
from lightning_perf.checks import checked
from lightning_perf.options import DoctorOptions, checked_options
from lightning_perf.probes.probe_set import ProbeSet
from lightning_perf.probes.profiler.window import WindowProbe
from lightning_perf.records import Session
from lightning_perf.records.remote import AnyPath
from lightning_perf.results import Results
from lightning_perf.rules.engine import check_codes
from lightning_perf.run import DoctorRun
from lightning_perf.user_loop import UserLoop

Schedule = str | list[int] | tuple[int, ...] | None
Names = list[str] | tuple[str, ...]

_log = logging.getLogger("lightning_perf")


class DoctorHooks(UserLoop, Results):
    """Callback that finds out why training is slow, what to change, and the expected speedup.

    Trainer(callbacks=[PerfDoctor()]). Results do not change, and whatever is
    patched is restored. Afterwards: doctor.verdict, doctor.findings,
    print(doctor.report()), doctor.session.

    Args:
        schedule: When profiler windows open: ``"auto"`` (one short window,
            another if the step time changes, or on ``profile_now()``),
            ``(wait, warmup, active[, repeat])`` in steps, or None.
        reports: Some of ``"console"``, ``"tensorboard"`` (also figures for W&B,
            MLflow, Comet, Neptune), ``"json"``, ``"html"``, ``"markdown"``,
            ``"upload"`` (session and HTML report to these services at the end).
        console: ``"brief"`` (15 lines), ``"full"`` or ``"off"``. None: the
            environment variable ``LIGHTNING_PERF_CONSOLE``, else brief.
        out_dir: Folder of ``perf_session.json``, or its URL (``s3://…``). None:
            the logger's folder of the run, or ``perf_logs/<time>``.
        probe_data: Measure the training loader in a child process that works
            on copies. ``"auto"``: after a fit of 50 s or more that spent over
            20 % of its time waiting for data, for at most 1 % of its time and
            5 s; not for a loader that holds locks, files, connections or
            unknown C code, and stopped if the data writes files or opens
            connections. True: up to 20 s after the first epoch, without these
            limits. False: never.
        apply: Treatments to apply once a finding recommends them, e.g.
            ``("loader-workers",)``; undone when the run ends. With several
            ranks, and for loaders, they are applied at the next epoch.
        autopilot: Try what findings recommend in this run, in alternating
            blocks of steps or epochs, and keep what is over 1.02x faster for
            certain. ``"exact"``: what leaves results bit-identical.
            ``"numerics"``: also what changes rounding, or which random numbers
            are drawn. None: change nothing.
        select: Codes or prefixes of the rules to run, e.g. ``["PD1"]``.
        ignore: Codes or prefixes of rules to leave out; longest match decides.
        options: All else: ``DoctorOptions(progress=True, memory=False)``, or a
            dict of its fields; see ``help(lightning_perf.DoctorOptions)``.

    Raises:
        ConfigError: An argument cannot be used as given.
    """

    def __init__(
        self,
        schedule: Schedule = "auto",
        *,
        reports: Names = arguments.REPORTS,
        console: str | None = None,
        out_dir: str | Path | None = None,
        probe_data: bool | str = "auto",
        apply: Names = (),
        autopilot: str | None = None,
        select: Names | None = None,
        ignore: Names | None = None,
        options: DoctorOptions | dict[str, Any] | None = None,
        **deprecated: Any,
    ) -> None:
        super().__init__()
        self.options = checked_options(options, **deprecated)
        self.schedule = arguments.checked_schedule(schedule)
        self.window_options = arguments.checked_window(self.schedule, self.options.profiler)
        self.reports: tuple[str, ...] = checked("reports", reports, arguments.RUN_REPORTS)
        self.console = arguments.checked_console(console)
        if self.console == "off":
            self.reports = tuple(report for report in self.reports if report != "console")
        self.out_dir = arguments.checked_path(out_dir)
        self.probe_data: Any = checked("probe_data", probe_data, arguments.PROBE_DATA)
        self.select: tuple[str, ...] | None = checked("select", select, arguments.CODES)
        self.ignore: tuple[str, ...] | None = checked("ignore", ignore, arguments.CODES)
        check_codes(self.select, self.ignore)
        self.rates = arguments.checked_rates(self.options.price_per_hour, self.options.gco2_per_kwh)
        self.apply = arguments.checked_apply(apply)
        self.autopilot: Any = checked("autopilot", autopilot, arguments.AUTOPILOT)
        self._forget()

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Store the state key as a class attribute: Lightning reads it at each hook, and its property is slower."""
        super().__init_subclass__(**arguments)
        owner = next((each for each in cls.__mro__ if isinstance(vars(each).get("state_key"), str)), None)
        is_default = DoctorHooks in cls.__bases__ or (
            owner is not None and vars(owner)["state_key"] == owner.__qualname__
        )
        if is_default and "state_key" not in vars(cls):
            setattr(cls, "state_key", cls.__qualname__)  # noqa: B010 - a property to a type checker

    def _forget(self) -> None:
        """Reset the state before a run, so that it never shows the results of an earlier one."""
        self.session: Session | None = None
        self._saved_at: AnyPath | None = None
        self._run: DoctorRun | None = None
        self._probes = ProbeSet()  # empty outside a run

    def _release(self) -> None:
        """Drop all references to the Trainer and its module."""
        for name in ("log", "log_dict"):  # Lightning sets them for each run
            vars(self).pop(name, None)
        self._run, self._probes = None, ProbeSet()

    def __getstate__(self) -> dict[str, Any]:
        """Return arguments and results for pickling, without references to the Trainer."""
        state = {name: value for name, value in self.__dict__.items() if name not in vars(UserLoop)}
        return {**state, "_run": None, "_probes": ProbeSet()}

    def profile_now(self) -> None:
        """Open a profiler window at the next step; does nothing if windows are off, or outside a run."""
        windows = self._probes.find(WindowProbe)
        if windows is not None:
            self._probes.call("windows", windows.request)
            self._probes.observe_next_step()

    # -- the run ------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._run is not None:  # a run that ended without teardown, or one that goes on
            if self._run.goes_on_without(trainer):
                _log.warning(
                    "This PerfDoctor stops measuring a Trainer that still runs, because another one has it too: give "
                    "each a PerfDoctor of its own."
                )
            self._run.restore()
            self._run.reports.close()
        self._forget()
        if next((one for one in trainer.callbacks if isinstance(one, DoctorHooks)), self) is not self:
            if trainer.is_global_zero:
                _log.warning(
                    "This Trainer has more than one PerfDoctor: the first one measures, the others do nothing."
                )
            return
        run = DoctorRun(self, trainer, self._probes, self._release)
        self._run = run
        run.open(pl_module, getattr(stage, "value", stage))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._run is not None:
            self._run.finish("finished")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End a run that failed or was interrupted, after which Lightning calls no ``teardown``."""
        if self._run is not None:
            self._run.finish("interrupted" if seams.is_on_purpose(trainer, exception) else "failed", exception)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._run is not None:
            self._run.loops_ready()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the settings of a run that only validates; within a fit, close an open profiler window."""
        context = self._probes.context
        if context is None or self._run is None:
            return
        if context.stage != "fit":
            self._run.loops_ready()
        else:
            self._probes.notify("validation_begins")
            self._probes.observe_next_step()

    on_test_start = on_validation_start
    on_predict_start = on_validation_start

    # -- training steps -----------------------------------------------------------------------------------------------

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step; most steps are only timed."""
        loop = self._probes.loop
        if loop is None:
            return
        main = loop.main
        if batch_idx == 0 or main.n_steps >= loop.next_instrumented_step or main.is_in_batch:
            self._probes.step_begins(loop, batch)
            if main.n_steps == 0:
                self._probes.notify("first_batch", batch)
            return
        try:
            main.batch_begins(batch)
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            self._probes.switch_off("steps", error)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loop = self._probes.loop
        if loop is not None:
            if loop.is_instrumented_step:
                self._probes.step_ends(loop, batch)
                if self._run is not None:
                    self._run.step_ended(pl_module)
            else:
                try:
                    loop.main.batch_ends(batch)
                except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
                    self._probes.switch_off("steps", error)
        if self._run is not None and self._run.autopilot is not None:
            self._run.autopilot.step_ended(pl_module)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Check in the first steps whether gradients are cleared."""
        if self._probes.watches_backward:
            self._probes.notify("before_backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Check gradients, and time how long this rank waited for others."""
        if self._probes.watches_backward:
            self._probes.notify("after_backward")

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._probes.watches_backward:
            self._probes.notify("before_zero_grad", optimizer)

    # -- batches of validation, testing and prediction ----------------------------------------------------------------

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        loop = self._probes.loop
        if loop is None:
            return
        self._probes.call("steps", loop.evaluation_begins, batch)
        if loop.stage != "fit":
            self._probes.notify("evaluation_begins", batch)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        loop = self._probes.loop
        if loop is not None:
            self._probes.call("steps", loop.evaluation_ends, outputs)

    on_test_batch_start = on_validation_batch_start
    on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_predict_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the last batch of validation, testing or prediction; time after it belongs to no batch."""
        if self._probes.loop is not None:
            self._probes.call("steps", self._probes.loop.evaluation_epoch_ends)

    on_test_epoch_end = on_validation_epoch_end
    on_predict_epoch_end = on_validation_epoch_end

    # -- epochs -------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Apply treatments that the last diagnosis recommends, if allowed."""
        if self._run is not None:
            self._run.apply_treatments(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._run is not None:
            self._run.epoch_ends((trainer.current_epoch + 1) % self.options.every_n_epochs == 0)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure what needs a pause, while all ranks still run."""
        if self._run is not None:
            self._run.training_ends()
