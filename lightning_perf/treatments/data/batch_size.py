"""Another batch size."""

from __future__ import annotations

import re
from typing import Any

from lightning_perf import seams
from lightning_perf.records import LoaderSettings, Session
from lightning_perf.treatments.train_loader import LoaderTreatment, train_loaders
from lightning_perf.treatments.treatment import Undo

DEFAULT = "x2"
_FORM = re.compile(r"x[2-9]\d*|x1\d+|[1-9]\d*")


class BatchSize(LoaderTreatment):
    id = "batch-size"
    safety = "semantics"
    effort = "minutes"
    summary = "trains with batches of N samples; accumulation is lowered where that keeps the samples of a step"
    when = (
        "Where the device has too little to do and memory is left. Without accumulation to take it from, a larger "
        "batch means fewer steps an epoch: learning rate and schedule are to be chosen anew."
    )
    is_live = False
    asks_loader = True  # what it was before decides the accumulation
    value_form = "N, samples a batch, or x2, x4 … for so many times as many"

    def applies_to_loader(self, loader: LoaderSettings, session: Session) -> str | None:
        return None if loader.batch_size is not None else "a batch sampler or the dataset decides the batch size"

    def parse_value(self, text: str | None) -> str | None:
        """``"64"`` or ``"x2"``, as it was given."""
        if text is not None and not _FORM.fullmatch(text):
            raise self.bad_value(text)
        return text

    def default_value(self, session: Session | None) -> str:
        return DEFAULT

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        loaders = train_loaders(session) if session is not None else ()
        batch_size = loaders[0].batch_size if loaders else None
        accumulated = session.settings.trainer.accumulate_grad_batches if session is not None else None
        if batch_size is None or accumulated is None:
            return {}
        kept = accumulation(accumulated, batch_size, resized(value, batch_size))
        return {} if kept in (None, accumulated) else {"accumulate_grad_batches": kept}

    def loader_args(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        """Where the value is a multiple, what it is a multiple of must be known."""
        loaders = train_loaders(session) if session is not None else ()
        if not value.startswith("x"):
            return {"batch_size": int(value)}
        if loaders and loaders[0].batch_size is not None:
            return {"batch_size": resized(value, loaders[0].batch_size)}
        return {}

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any]) -> Undo | None:
        return None

    def loader_args_for(self, value: Any, loader: Any) -> dict[str, Any]:
        # Without a batch size of its own any is refused, with the reason.
        now = getattr(loader, "batch_size", None)
        return {"batch_size": resized(value, now) if now is not None else 1}

    def follow_loader(self, value: Any, trainer: Any, before: Any, after: Any) -> Undo | None:
        kept = accumulation(trainer.accumulate_grad_batches, before.batch_size, after.batch_size)
        return None if kept is None else seams.change_attribute(trainer, "accumulate_grad_batches", kept)


def resized(value: str, batch_size: int) -> int:
    """The batch size that a value means, given the one there was."""
    return batch_size * int(value[1:]) if value.startswith("x") else int(value)


def accumulation(n_batches: int, batch_size: int, new_batch_size: int) -> int | None:
    """Batches an optimizer step that keep its samples; None where no whole number does."""
    n_samples = n_batches * batch_size
    return n_samples // new_batch_size if n_samples % new_batch_size == 0 else None


TREATMENT = BatchSize()
