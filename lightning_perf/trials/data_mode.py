"""Modes ``data`` and ``ceiling``: the loader alone, and the training without its loader."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_perf.probes.loader import LIMIT_S
from lightning_perf.records import Session
from lightning_perf.trials.callbacks import callback_class
from lightning_perf.trials.data_hooks import DataProbeHooks, OneBatchHooks
from lightning_perf.trials.guests import add_callback
from lightning_perf.trials.job import Job, Result
from lightning_perf.trials.trial_mode import TrialMode


class DataMode(TrialMode):
    """Runs the script up to its training loader and probes that; the script then ends."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.has_probed = False

    @property
    def is_over(self) -> bool:
        return self.has_probed or super().is_over

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        return {**super().change_arguments(arguments, namespace), "num_sanity_val_steps": 0}

    def built(self, trainer: Any, namespace: str) -> None:
        limit_s = float(self.job.options.get("limit_s", LIMIT_S))
        hooks = callback_class(DataProbeHooks, namespace)(limit_s, self.probed, self.job.options.get("compute_s"))
        add_callback(trainer, hooks, is_first=True)

    def probed(self, session: Session | None) -> None:
        """Writes the session of the probe down; called on every rank, with it on the first."""
        self.has_probed = True
        if session is not None:
            data = {"session": msgspec.to_builtins(session)}
            Result(status="ok", data=data).write(self.job.folder)


class CeilingMode(TrialMode):
    """Some steps of the training on one batch that is at hand."""

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        return {**super().change_arguments(arguments, namespace), "num_sanity_val_steps": 0}

    def built(self, trainer: Any, namespace: str) -> None:
        super().built(trainer, namespace)
        add_callback(trainer, callback_class(OneBatchHooks, namespace)(), is_first=True)
