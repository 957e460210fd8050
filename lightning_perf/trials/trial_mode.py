"""Mode ``trial``: some steps of the user's training, treated and measured; then the script ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning_perf.hooks import DoctorHooks
from lightning_perf.trials.callbacks import callback_class
from lightning_perf.trials.guests import add_callback, add_doctor, add_treater, make_applier
from lightning_perf.trials.inside import Over, describe, fail, leave, seed_all
from lightning_perf.trials.job import DOCTOR_FOLDER, OUTPUTS, RESULT_FILE, Job, Result
from lightning_perf.trials.meter import MeterHooks
from lightning_perf.trials.outputs import Outputs


class TrialMode:
    """Measures the first ``fit`` that trains; whatever the script does before runs as it is."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.applier = make_applier(job.specs)
        self.outputs: Outputs | None = None
        self.meters: list[Any] = []

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        self.outputs = Outputs(Path(self.job.folder) / OUTPUTS, namespace)
        changed = self.outputs.change_arguments(arguments)
        return self.applier.change_trainer_arguments(changed) if self.applier is not None else changed

    def built(self, trainer: Any, namespace: str) -> None:
        meter = callback_class(MeterHooks, namespace)(self.job, self.finish)
        meter.outputs = self.outputs
        if self.applier is not None:
            add_treater(trainer, namespace, self.applier, self.cannot_treat)
        add_callback(trainer, meter, is_first=True)  # before all that could save
        if self.job.with_doctor:
            doctor = add_doctor(trainer, namespace, self.job.doctor)
            doctor.out_dir = Path(self.job.folder) / DOCTOR_FOLDER
            doctor.reports = ("json",)
        else:
            trainer.callbacks[:] = [one for one in trainer.callbacks if not isinstance(one, DoctorHooks)]
        self.meters.append(meter)

    def fit(self, trainer: Any, fit: Callable[[], Any]) -> Any:
        if self.has_result:  # of another process that the command started before
            leave(0)
        if self.outputs is not None:
            self.outputs.redirect(trainer)
        if self.job.seed is not None:
            seed_all(self.job.seed)
        try:
            returned = fit()
        except Over:
            raise
        except BaseException as error:  # noqa: BLE001 - a script may catch it and train on
            fail(self.job, describe(error), error)
        if self.is_over:
            leave(0)
        return returned

    @property
    def is_over(self) -> bool:
        """Whether this process has nothing more to measure."""
        return self.has_result or any(meter.has_trained for meter in self.meters)

    @property
    def has_result(self) -> bool:
        """Whether a training of this command was measured already."""
        return (Path(self.job.folder) / RESULT_FILE).exists()

    def finish(self, result: Result) -> None:
        """Writes the result down, unless another training of the same command has been quicker."""
        if not self.has_result:
            result.write(self.job.folder)

    def cannot_treat(self, error: BaseException) -> None:
        """Ends the script: a training without the treatment would be measured as if it had it."""
        fail(self.job, f"the treatment cannot be applied: {describe(error)}", error)
