"""Mixed precision in bfloat16."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.precision import change_precision, precision_set
from lightning_perf.treatments.treatment import Treatment, Undo


class PrecisionBf16(Treatment):
    id = "precision-bf16"
    safety = "numerics"
    summary = "computes matrix products and convolutions in bfloat16, weights stay in float32"
    when = (
        "Where the hardware has fast bf16: NVIDIA Ampere and newer, AMD CDNA, some CPUs. Elsewhere it is slower; on a "
        "CPU only a measurement tells. It needs no loss scaling."
    )
    conflicts = frozenset({"precision-fp16"})

    def applies_to(self, session: Session) -> str | None:
        if (reason := precision_set(session)) is not None:
            return reason
        slow = [device.name for device in session.machine.devices if device.has_fast_bf16 is False]
        return f"{slow[0]} has no fast bf16" if slow else None

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"precision": "bf16-mixed"}

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any]) -> Undo | None:
        change_precision(arguments, "bf16-mixed")
        return None


TREATMENT = PrecisionBf16()
