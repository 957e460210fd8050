"""What lightning-perf does in the user's process, by mode of the job.

A mode is created before the first Trainer. ``change_arguments`` returns the keyword arguments to build a Trainer with,
``built`` is called with the new Trainer, and ``fit`` instead of ``trainer.fit``. A Trainer within the ``fit`` of
another one is only built, by ``build_inner``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lightning_perf.arguments import checked_schedule, checked_window
from lightning_perf.hooks import DoctorHooks
from lightning_perf.records import Session
from lightning_perf.treatments.applier import Applier
from lightning_perf.treatments.specs import parse_all
from lightning_perf.trials.inject_callbacks import TreaterHooks, add_doctor, add_hooks
from lightning_perf.trials.inside import Over, describe, fail, leave, seed_all
from lightning_perf.trials.job import DOCTOR_FOLDER, OUTPUTS, RESULT_FILE, Job, Result, note, warn
from lightning_perf.trials.meter import MeterHooks
from lightning_perf.trials.outputs import Outputs


class RunMode:
    """The user's own training, with PerfDoctor added if the script has none, and treatments applied."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._has_failed = False
        self.applier = Applier(parse_all(job.specs), self.cannot_treat)

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        return self.applier.change_trainer_arguments(arguments)

    def built(self, trainer: Any, namespace: str) -> None:
        if self.job.with_doctor:
            doctor = add_doctor(trainer, namespace, self.job.doctor)
            wanted = self.job.doctor.get("out_dir")
            if wanted is not None and str(doctor.out_dir) != wanted and trainer.is_global_zero:
                place = f"to {doctor.out_dir}" if doctor.out_dir is not None else "beside the logs"
                warn(f"--out is not used: the script has a PerfDoctor of its own, which writes {place}")
        if self.job.specs:
            add_hooks(trainer, namespace, TreaterHooks, self.applier, self.cannot_treat, self._confirm)

    def build_inner(self, build: Callable[..., None], trainer: Any, arguments: dict[str, Any], namespace: str) -> None:
        build(trainer, **arguments)

    def fit(self, trainer: Any, fit: Callable[[], Any]) -> Any:
        return fit()

    def cannot_treat(self, error: BaseException, what: str = "a treatment was not applied") -> None:
        """Report a treatment that is not applied; the training continues without it."""
        self._has_failed = True
        warn(f"{what}: {describe(error)}")

    def _confirm(self, trainer: Any) -> None:
        """Report what was applied, and which loaders are unchanged."""
        if self._has_failed or not trainer.is_global_zero:
            return
        where = "; loaders other than the training loader are unchanged" if self.applier.changes_loaders else ""
        warn(f"applied {', '.join(spec.text for spec in self.applier.specs)}{where}")


class TrialMode:
    """Some steps of the training, treated and measured; then the script ends.

    The first ``fit`` that trains is measured; what the script does before runs unchanged.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.applier = Applier(parse_all(job.specs))
        self.outputs: Outputs | None = None
        self.meters: list[Any] = []

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        self.outputs = Outputs(Path(self.job.folder) / OUTPUTS, namespace)
        return self.applier.change_trainer_arguments(self.outputs.change_arguments(arguments))

    def built(self, trainer: Any, namespace: str) -> None:
        if self.job.specs:
            add_hooks(trainer, namespace, TreaterHooks, self.applier, self.cannot_treat)
        meter = add_hooks(trainer, namespace, MeterHooks, self.job, self.finish)  # before callbacks that could save
        meter.outputs = self.outputs
        if self.job.with_doctor:
            doctor = add_doctor(trainer, namespace, self.job.doctor)
            doctor.out_dir = Path(self.job.folder) / DOCTOR_FOLDER
            doctor.reports = ("json",)
            # One of the script's own diagnoses the training as it is too, with the same profiler window.
            doctor.apply, doctor.autopilot = (), None
            schedule = checked_schedule(self.job.doctor.get("schedule", "auto"))
            doctor.window_options = checked_window(schedule, doctor.options.profiler)
        else:
            trainer.callbacks[:] = [one for one in trainer.callbacks if not isinstance(one, DoctorHooks)]
        self.meters.append(meter)

    def build_inner(self, build: Callable[..., None], trainer: Any, arguments: dict[str, Any], namespace: str) -> None:
        outputs = Outputs(Path(self.job.folder) / OUTPUTS / "inner", namespace)
        build(trainer, **outputs.change_arguments(arguments))
        outputs.redirect(trainer)
        outputs.guard_checkpoints(trainer)

    def fit(self, trainer: Any, fit: Callable[[], Any]) -> Any:
        if self.has_result:  # another process of this command was measured
            self._leave()
        if self.outputs is None:
            fail(self.job, "its Trainer was built before the run; build a new one for each run")
        self.outputs.redirect(trainer)
        if self.job.seed is not None:
            seed_all(self.job.seed)
        try:
            returned = fit()
        except Over:
            raise
        except BaseException as error:  # noqa: BLE001 - reported before the script can catch it and continue
            fail(self.job, describe(error), error)
        if self.is_over:
            self._leave()
        return returned

    def _leave(self) -> None:
        note(self.job, "over")
        leave(0)

    @property
    def is_over(self) -> bool:
        """Whether this process has nothing more to measure."""
        return self.has_result or any(meter.has_trained for meter in self.meters)

    @property
    def has_result(self) -> bool:
        """Whether a training of this command was measured already."""
        return (Path(self.job.folder) / RESULT_FILE).exists()

    def finish(self, result: Result) -> None:
        """Write the result, unless another training of the same command has already written one."""
        if not self.has_result:
            result.write(self.job.folder)

    def cannot_treat(self, error: BaseException, what: str = "the treatment cannot be applied") -> None:
        """End the script: a training without the treatment must not be measured as if it had it."""
        fail(self.job, f"{what}: {describe(error)}", error)


class _LoaderMode(TrialMode):
    """A mode without sanity validation, so that the training's loader is the first to be used."""

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        return {**super().change_arguments(arguments, namespace), "num_sanity_val_steps": 0}


class CeilingMode(_LoaderMode):
    """Some steps of the training on one batch that is kept in memory."""

    def built(self, trainer: Any, namespace: str) -> None:
        from lightning_perf.trials.data_hooks import OneBatchHooks

        super().built(trainer, namespace)
        add_hooks(trainer, namespace, OneBatchHooks)


class DataMode(_LoaderMode):
    """The script up to its training loader, which is probed; then the script ends."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.has_probed = False

    @property
    def is_over(self) -> bool:
        return self.has_probed or super().is_over

    def built(self, trainer: Any, namespace: str) -> None:
        from lightning_perf.trials.data_hooks import DataProbeHooks

        options = self.job.options
        add_hooks(trainer, namespace, DataProbeHooks, options["limit_s"], self.probed, options.get("compute_s"))

    def probed(self, session: Session | None) -> None:
        """Write the session of the probe; called on every rank, with the session on rank 0 only."""
        self.has_probed = True
        if session is not None:
            Result(status="ok", data={"session": msgspec.to_builtins(session)}).write(self.job.folder)


MODES: dict[str, type[RunMode] | type[TrialMode]] = {
    "run": RunMode,
    "trial": TrialMode,
    "data": DataMode,
    "ceiling": CeilingMode,
}
