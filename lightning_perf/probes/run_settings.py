"""The settings of a run: read once the loops are ready, completed by what only steps can show."""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from lightning_perf import seams
from lightning_perf.records import Session

from .base import Probe, RunContext
from .settings import LOGGED, read_settings


class SettingsProbe(Probe):
    """Reads the settings of the Trainer, its loaders, the model and torch."""

    name = "settings"
    after = ("steps",)

    def __init__(self, run: RunContext) -> None:
        self._context = run
        self._saw_anomaly_detection = False  # by torch's own function, in a hook that runs after ours

    def loops_ready(self, run: RunContext) -> None:
        run.settings, missing = read_settings(run.trainer, run.pl_module)
        self.missing.update(missing)

    def epoch_ends(self) -> None:
        """Check for anomaly detection, which the training may switch on."""
        self._saw_anomaly_detection = self._saw_anomaly_detection or torch.is_anomaly_enabled()

    def part(self, session: Session) -> Mapping[str, Any]:
        context, replace = self._context, msgspec.structs.replace
        settings = context.settings
        logged = seams.step_logging(context.trainer)
        if logged is not None:
            for name in LOGGED:
                self.missing.pop(name, None)
        prog_bar_metrics, sync_dist_on_step = logged or (None, None)
        trainer = replace(settings.trainer, prog_bar_metrics=prog_bar_metrics, sync_dist_on_step=sync_dist_on_step)
        if self._saw_anomaly_detection:
            trainer = replace(trainer, is_anomaly_detection_on=True)
        model = settings.model
        if model is not None:
            model = replace(model, eval_outputs_have_graph=context.loop.outputs_have_graph)
        return {"settings": replace(settings, trainer=trainer, model=model)}
