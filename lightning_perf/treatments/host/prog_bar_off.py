"""Metrics kept off the progress bar."""

from __future__ import annotations

from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo

METRICS, BAR = "metrics", "bar"


class ProgBarOff(Treatment):
    id = "prog-bar-off"
    effort = "minutes"
    summary = "keeps metrics off the progress bar, each of which is read from the device at every step"
    when = "Where `self.log(..., prog_bar=True)` waits for the device. `=bar` takes the whole progress bar away."
    is_live = True
    value_form = f"{METRICS} or {BAR}"

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.progress_bar is None:
            return "there is no progress bar"
        return "no metric is shown on the bar at each step" if trainer.prog_bar_metrics == 0 else None

    def parse_value(self, text: str | None) -> str | None:
        if text not in (None, METRICS, BAR):
            raise self.bad_value(text)
        return text

    def default_value(self, session: Session | None) -> str:
        return METRICS

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"enable_progress_bar": False} if value == BAR else {}

    def statements(self, value: Any) -> str:
        return "" if value == BAR else "self.log(..., prog_bar=False)  # wherever prog_bar=True stands"

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any]) -> Undo | None:
        return None  # the Trainer refuses the flag beside a bar of the user's: it is silenced in `set_up` instead

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        if value == METRICS:
            return _LogWithoutBar(trainer, module).undo
        bar = trainer.progress_bar_callback
        if bar is None:
            raise TreatmentError("prog-bar-off=bar expected a progress bar; there is none")
        bar.disable()
        return _Enable(bar)


class _LogWithoutBar:
    """Replacement of ``module.log``, through which ``log_dict`` goes as well.

    What was logged before, and what will be logged after the undo, must agree with what is logged in between: Lightning
    refuses a name that is logged with other arguments than the first time.
    """

    def __init__(self, trainer: Any, module: Any) -> None:
        self.trainer, self.module = trainer, module
        self.inner = module.log
        self.had_own = "log" in vars(module)
        self.hidden: set[tuple[Any, Any]] = set()
        for meta in seams.logged_metadata(trainer):
            if meta.prog_bar:
                self.hidden.add((meta.fx, meta.name))
                meta.prog_bar = False
        module.log = self

    def __call__(self, name: str, value: Any, prog_bar: bool = False, *args: Any, **kwargs: Any) -> None:
        if prog_bar:
            self.hidden.add((getattr(self.module, "_current_fx_name", None), name))
        self.inner(name, value, False, *args, **kwargs)

    def undo(self) -> None:
        if vars(self.module).get("log") is self:
            if self.had_own:
                self.module.log = self.inner
            else:
                del self.module.log
        for meta in seams.logged_metadata(self.trainer):
            if (meta.fx, meta.name) in self.hidden:
                meta.prog_bar = True

    def __reduce__(self) -> Any:
        return getattr, (self.module, "log")


class _Enable:
    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def __call__(self) -> None:
        self.bar.enable()


TREATMENT = ProgBarOff()
