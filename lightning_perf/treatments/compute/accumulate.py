"""Gradients of several batches in one optimizer step."""

from __future__ import annotations

from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment

DEFAULT_BATCHES = 4


class Accumulate(Treatment):
    id = "accumulate"
    safety = "semantics"
    summary = "takes an optimizer step after every N batches: fewer steps and fewer exchanges of gradients"
    when = (
        "Where the optimizer or the exchange of gradients dominates, or where memory allows no larger batch. There are "
        "fewer steps an epoch: learning rate and schedule are to be chosen anew."
    )
    value_form = "N, batches an optimizer step, at least 2"

    def applies_to(self, session: Session) -> str | None:
        if session.settings.trainer.is_automatic_optimization is False:
            return "optimization is manual: the module itself decides when it steps"
        now, wanted = session.settings.trainer.accumulate_grad_batches, self.default_value(session)
        return f"accumulate_grad_batches is {now} already" if now is not None and now >= wanted else None

    def parse_value(self, text: str | None) -> int | None:
        return self.whole(text, least=2)

    def default_value(self, session: Session | None) -> int:
        prescription = self.prescribed(session)
        flags = prescription.trainer_flags if prescription is not None else {}
        return int(flags.get("accumulate_grad_batches", DEFAULT_BATCHES))

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"accumulate_grad_batches": value}


TREATMENT = Accumulate()
