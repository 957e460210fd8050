"""Matrix products of float32 in TF32 or less."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo


class MatmulPrecisionHigh(Treatment):
    id = "matmul-precision-high"
    safety = "numerics"
    summary = "lets matrix products of float32 tensors use TF32"
    when = "On NVIDIA Ampere and newer, where float32 is kept. `=medium` allows bfloat16 inside the products."
    is_live = True
    value_form = "high or medium"

    def applies_to(self, session: Session) -> str | None:
        if session.settings.trainer.accelerator in ("cpu", "mps", None):
            return f"the accelerator is {session.settings.trainer.accelerator or 'not known'}: it has no TF32"
        now = session.settings.torch.float32_matmul_precision
        return f"float32_matmul_precision is {now} already" if now not in (None, "highest") else None

    def parse_value(self, text: str | None) -> str | None:
        if text not in (None, "high", "medium"):
            raise self.bad_value(text)
        return text

    def default_value(self, session: Session | None) -> str:
        return "high"

    def statements(self, value: Any) -> str:
        return f'torch.set_float32_matmul_precision("{value}")'

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(value)
        return lambda: torch.set_float32_matmul_precision(before)


TREATMENT = MatmulPrecisionHigh()
