"""Mode ``run``: the user's own training, with PerfDoctor added and treatments applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_perf.trials.guests import add_doctor
from lightning_perf.trials.job import Job


class RunMode:
    """Adds PerfDoctor where the script has none; treatments are applied either way."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        return arguments

    def built(self, trainer: Any, namespace: str) -> None:
        if self.job.with_doctor:
            add_doctor(trainer, namespace, self.job.doctor)

    def fit(self, trainer: Any, fit: Callable[[], Any]) -> Any:
        return fit()
