"""Mode ``run``: the user's own training, with PerfDoctor added and treatments applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.trials.guests import add_doctor, add_treater, make_applier
from lightning_perf.trials.inside import describe
from lightning_perf.trials.job import Job, warn


class RunMode:
    """Adds PerfDoctor where the script has none; treatments are applied either way."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.applier = make_applier(job.specs, self.cannot_treat)

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        try:
            return self.applier.change_trainer_arguments(arguments) if self.applier is not None else arguments
        except TreatmentError as error:
            self.cannot_treat(error)
            return arguments

    def built(self, trainer: Any, namespace: str) -> None:
        if self.job.with_doctor:
            doctor = add_doctor(trainer, namespace, self.job.doctor)
            wanted = self.job.doctor.get("out_dir")
            if wanted is not None and str(doctor.out_dir) != wanted and trainer.is_global_zero:
                place = f"to {doctor.out_dir}" if doctor.out_dir is not None else "beside the logs"
                warn(f"--out is not used: the script has a PerfDoctor of its own, which writes {place}")
        if self.applier is not None:
            add_treater(trainer, namespace, self.applier, self.cannot_treat)

    def fit(self, trainer: Any, fit: Callable[[], Any]) -> Any:
        return fit()

    def cannot_treat(self, error: BaseException) -> None:
        """The training goes on without it."""
        warn(f"a treatment was not applied: {describe(error)}")
