"""Loggers written less often."""

from __future__ import annotations

from typing import Any

from lightning_perf import seams
from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo

DEFAULT_STEPS = 50  # Lightning's own default


class LogEveryN(Treatment):
    id = "log-every-n"
    summary = "hands metrics to the loggers every N steps"
    when = "Where logging shows in the step. What is logged is the same, at fewer steps."
    is_live = True
    value_form = "N, steps between two logs, at least 1"

    def applies_to(self, session: Session) -> str | None:
        now, wanted = session.settings.trainer.log_every_n_steps, self.default_value(session)
        return f"log_every_n_steps is {now} already" if now is not None and now >= wanted else None

    def parse_value(self, text: str | None) -> int | None:
        return self.whole(text, least=1)

    def default_value(self, session: Session | None) -> int:
        prescription = self.prescribed(session)
        flags = prescription.trainer_flags if prescription is not None else {}
        return int(flags.get("log_every_n_steps", DEFAULT_STEPS))

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"log_every_n_steps": value}

    def apply_live(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        return seams.change_attribute(trainer, "log_every_n_steps", value)


TREATMENT = LogEveryN()
