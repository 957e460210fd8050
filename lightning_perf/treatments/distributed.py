"""Treatments of DistributedDataParallel."""

from typing import Any, ClassVar

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session

from .treatment import Treatment


class DdpTreatment(Treatment):
    """One keyword argument of ``DistributedDataParallel``, set to ``setting``."""

    argument: ClassVar[str]
    setting = True

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if trainer.strategy is None or "DDP" not in trainer.strategy:
            return f"the strategy is {trainer.strategy or 'not known'}, not DDP"
        now = getattr(trainer, self.argument)
        return f"{self.argument} is {now} already" if bool(now) is self.setting else None

    def strategy_args(self, value: Any) -> dict[str, Any]:
        return {self.argument: self.setting}

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        if not seams.change_ddp_arguments(trainer.strategy, {self.argument: self.setting}, undos):
            raise TreatmentError(f"{self.id} expected a DDP strategy, found {type(trainer.strategy).__name__}")


class DdpBucketView(DdpTreatment):
    id = "ddp-bucket-view"
    summary = "stores gradients in the buckets that DDP exchanges, which saves one copy and its memory"
    when = "With DDP, unless code keeps or detaches `parameter.grad` itself."
    argument = "gradient_as_bucket_view"


class DdpFindUnusedOff(DdpTreatment):
    id = "ddp-find-unused-off"
    summary = "stops DDP from searching the graph for unused parameters after every forward pass"
    when = "Where every loss uses every parameter. Otherwise DDP stops with an error."
    argument = "find_unused_parameters"
    setting = False


class DdpStaticGraph(DdpTreatment):
    id = "ddp-static-graph"
    summary = "declares that every step uses the same parameters, so that DDP does not search for unused ones"
    when = "Where the graph of the loss is the same in every step. Otherwise DDP stops with an error."
    argument = "static_graph"


TREATMENTS = (DdpBucketView(), DdpFindUnusedOff(), DdpStaticGraph())
