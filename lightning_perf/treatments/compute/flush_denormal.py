"""Numbers next to zero taken as zero."""

from __future__ import annotations

from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo

SMALL = 1e-38  # a normal float32; a thousandth of it is not


class FlushDenormal(Treatment):
    id = "flush-denormal"
    safety = "numerics"
    summary = "takes denormal numbers on the CPU as zero, which are many times slower to compute with"
    when = (
        "Where weights or activations decay towards zero on a CPU. It holds for the calling thread and for those "
        "started after it: set it before the first computation."
    )
    is_live = True

    def applies_to(self, session: Session) -> str | None:
        accelerator = session.settings.trainer.accelerator
        return None if accelerator in ("cpu", None) else f"the training computes on {accelerator}"

    def statements(self, value: Any) -> str:
        return "torch.set_flush_denormal(True)  # first of all"

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        import torch

        was_on = bool((torch.tensor(SMALL) * 1e-3 == 0).item())  # torch tells it no other way
        if not torch.set_flush_denormal(True):
            raise TreatmentError("this CPU cannot flush denormal numbers: expected one with SSE3, or ARM64")

        def undo() -> None:
            torch.set_flush_denormal(was_on)

        return undo


TREATMENT = FlushDenormal()
