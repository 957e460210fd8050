"""Validation less often."""

from __future__ import annotations

import re
from typing import Any

from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment

DEFAULT = "2"
_FORM = re.compile(r"[1-9]\d*b?|0\.\d*[1-9]\d*|1\.0")


class ValLessOften(Treatment):
    id = "val-less-often"
    safety = "semantics"
    summary = "validates less often"
    when = (
        "Where validation takes a good part of the time. Early stopping, schedulers and checkpoints that watch a "
        "validation metric then see it less often."
    )
    acts_on = "loop"
    value_form = "N epochs between two validations, a fraction of an epoch up to 1.0, or Nb for N batches"

    def applies_to(self, session: Session) -> str | None:
        flags = self.trainer_flags(self.default_value(session))
        now = {name: getattr(session.settings.trainer, name) for name in flags}
        if session.settings.trainer.limit_val_batches == 0:
            return "there is no validation"
        asked = {name: wanted for name, wanted in flags.items() if wanted is not None}
        is_there = all(now[name] is not None and now[name] >= wanted for name, wanted in asked.items())
        return f"{', '.join(f'{name} is {now[name]}' for name in asked)} already" if is_there else None

    def parse_value(self, text: str | None) -> str | None:
        """As it was given."""
        if text is not None and not _FORM.fullmatch(text):
            raise self.bad_value(text)
        return text

    def default_value(self, session: Session | None) -> str:
        prescription = self.prescribed(session)
        flags = prescription.trainer_flags if prescription is not None else {}
        if flags.get("check_val_every_n_epoch") is not None:
            return str(flags["check_val_every_n_epoch"])
        interval = flags.get("val_check_interval")
        if interval is None:
            return DEFAULT
        return str(interval) if isinstance(interval, float) else f"{interval}b"

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        if value.endswith("b"):
            # Counted over all epochs: within one, the Trainer refuses more batches than that has.
            return {"val_check_interval": int(value[:-1]), "check_val_every_n_epoch": None}
        return {"val_check_interval": float(value)} if "." in value else {"check_val_every_n_epoch": int(value)}


TREATMENT = ValLessOften()
