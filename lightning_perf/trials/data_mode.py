"""Modes ``data`` and ``ceiling``: the loader alone, and the training without its loader."""

from __future__ import annotations

from typing import Any

import msgspec

from lightning_perf.probes.loader import LIMIT_S
from lightning_perf.records import Session
from lightning_perf.trials.guests import add_callback, callback_class
from lightning_perf.trials.inside import end_process
from lightning_perf.trials.job import Result
from lightning_perf.trials.trial_mode import TrialMode


class DataMode(TrialMode):
    """Runs the script up to its training loader and probes that; the process then ends."""

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        return {**super().change_arguments(arguments, namespace), "num_sanity_val_steps": 0}

    def built(self, trainer: Any, namespace: str) -> None:
        limit_s = float(self.job.options.get("limit_s", LIMIT_S))
        add_callback(trainer, callback_class("DataProbe", namespace)(limit_s, self.probed), is_first=True)

    def probed(self, session: Session | None) -> None:
        """Writes the session of the probe down and ends this rank."""
        if session is not None:
            data = {"session": msgspec.to_builtins(session)}
            Result(status="ok", data=data).write(self.job.folder)
        end_process(0)


class CeilingMode(TrialMode):
    """Some steps of the training on one batch that is at hand."""

    def change_arguments(self, arguments: dict[str, Any], namespace: str) -> dict[str, Any]:
        return {**super().change_arguments(arguments, namespace), "num_sanity_val_steps": 0}

    def built(self, trainer: Any, namespace: str) -> None:
        super().built(trainer, namespace)
        add_callback(trainer, callback_class("OneBatchOnly", namespace)(), is_first=True)
