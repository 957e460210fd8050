"""What the treatments of DistributedDataParallel share."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session

from .treatment import Treatment, Undo


class DdpTreatment(Treatment):
    """One keyword argument of ``DistributedDataParallel``.

    Attributes:
        argument: Its name.
        wanted: What it is set to.
    """

    argument: ClassVar[str]
    wanted: ClassVar[bool] = True

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.strategy is None or "DDP" not in trainer.strategy:
            return f"the strategy is {trainer.strategy or 'not known'}, not DDP"
        is_set = getattr(trainer, self.argument)
        return f"{self.argument} is {is_set} already" if bool(is_set) is self.wanted else None

    def strategy_args(self, value: Any) -> dict[str, Any]:
        return {self.argument: self.wanted}

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        undo = seams.change_ddp_arguments(trainer.strategy, {self.argument: self.wanted})
        if undo is None:
            raise TreatmentError(f"{self.id} expected a DDP strategy, found {type(trainer.strategy).__name__}")
        return undo
