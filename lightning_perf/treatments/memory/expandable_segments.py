"""Memory of the device in segments that grow."""

from __future__ import annotations

import os
from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment

VARIABLES = {"cuda": "PYTORCH_CUDA_ALLOC_CONF", "rocm": "PYTORCH_HIP_ALLOC_CONF"}


class ExpandableSegments(Treatment):
    id = "expandable-segments"
    summary = "lets the allocator extend its segments instead of asking for new ones, so that less lies idle"
    when = "Where batches differ in shape and reserved memory is well above what is allocated."
    value_form = "cuda or rocm"

    def applies_to(self, session: Session) -> str | None:
        accelerator = session.settings.trainer.accelerator
        return None if accelerator == "cuda" else f"the accelerator is {accelerator or 'not known'}: no such allocator"

    def parse_value(self, text: str | None) -> str | None:
        if text is not None and text not in VARIABLES:
            raise self.bad_value(text)
        return text

    def default_value(self, session: Session | None) -> str:
        is_rocm = session is not None and "hip" in session.machine.versions  # torch calls AMD's devices "cuda" too
        return "rocm" if is_rocm else "cuda"

    def environment(self, value: Any) -> dict[str, str]:
        variable = VARIABLES[value]
        others = [one for one in os.environ.get(variable, "").split(",") if one and "expandable_segments" not in one]
        return {variable: ",".join([*others, "expandable_segments:True"])}


TREATMENT = ExpandableSegments()
