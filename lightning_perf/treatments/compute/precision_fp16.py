"""Mixed precision in float16."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.precision import change_precision, precision_set
from lightning_perf.treatments.treatment import Treatment, Undo


class PrecisionFp16(Treatment):
    id = "precision-fp16"
    safety = "numerics"
    summary = "computes matrix products and convolutions in float16 with loss scaling, weights stay in float32"
    when = (
        "Where the device has fast fp16 but no fast bf16 (NVIDIA Volta and Turing). With a fused optimizer it cannot "
        "clip gradients: Lightning refuses the three together."
    )
    conflicts = frozenset({"precision-bf16"})

    def applies_to(self, session: Session) -> str | None:
        if (reason := precision_set(session)) is not None:
            return reason
        if session.settings.trainer.accelerator in ("cpu", None):
            return "float16 on a CPU is slower than float32"
        slow = [device.name for device in session.machine.devices if device.has_fast_fp16 is False]
        return f"{slow[0]} has no fast fp16" if slow else None

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"precision": "16-mixed"}

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any]) -> Undo | None:
        change_precision(arguments, "16-mixed")
        return None


TREATMENT = PrecisionFp16()
