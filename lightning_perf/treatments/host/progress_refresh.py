"""The progress bar drawn less often."""

from __future__ import annotations

import re
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo

DEFAULT_STEPS = 20


class ProgressRefresh(Treatment):
    id = "progress-refresh"
    summary = "draws the progress bar every N steps"
    when = (
        "Where the bar shows in short steps: it is drawn after each one by default. A RichProgressBar of Lightning 2.6 "
        "refreshes by time and needs nothing."
    )
    is_live = True
    value_form = "N, steps between two refreshes, at least 1"

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.progress_bar is None:
            return "there is no progress bar"
        rate, wanted = trainer.progress_bar_refresh_rate, self.default_value(session)
        if rate is None:
            return f"{trainer.progress_bar} refreshes by time"
        return f"refresh_rate is {rate} already" if rate >= wanted or rate == 0 else None

    def parse_value(self, text: str | None) -> int | None:
        return self.whole(text, least=1)

    def default_value(self, session: Session | None) -> int:
        prescription = self.prescribed(session)
        wanted = re.search(r"refresh_rate=(\d+)", prescription.code) if prescription is not None else None
        return int(wanted[1]) if wanted else DEFAULT_STEPS

    def trainer_code(self, value: Any) -> dict[str, str]:
        return {"callbacks": f"[TQDMProgressBar(refresh_rate={value})]"}

    def imports(self, value: Any) -> str:
        return "from lightning.pytorch.callbacks import TQDMProgressBar"

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        undo = seams.change_refresh_rate(trainer, value)
        if undo is None:
            bar = (
                type(trainer.progress_bar_callback).__name__ if trainer.progress_bar_callback is not None else "no bar"
            )
            raise TreatmentError(f"progress-refresh expected a progress bar that refreshes by steps, found {bar}")
        return undo


TREATMENT = ProgressRefresh()
