"""Anomaly detection switched off."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo


class AnomalyOff(Treatment):
    id = "anomaly-off"
    summary = "switches autograd's anomaly detection off, which records a stack for every operation"
    when = "Always, once the bug is found that it was switched on for."
    is_live = True

    def applies_to(self, session: Session) -> str | None:
        is_on = session.settings.trainer.is_anomaly_detection_on
        return "anomaly detection is off already" if is_on is False else None

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"detect_anomaly": False}

    def apply_live(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        import torch

        torch.autograd.set_detect_anomaly(False)  # until fit ends: Lightning then puts back what was set before it
        return None


TREATMENT = AnomalyOff()
