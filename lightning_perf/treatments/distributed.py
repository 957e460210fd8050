"""Treatments of training on several ranks: arguments of DDP, and FSDP."""

from typing import Any, ClassVar

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session

from .blocks import repeated_blocks
from .treatment import Treatment


def _why_not(kind: str, session: Session) -> str | None:
    """Return why the strategy is not of this kind; None if it is."""
    strategy = session.settings.trainer.strategy
    return None if kind in (strategy or "") else f"the strategy is {strategy or 'not known'}, not {kind}"


class DdpTreatment(Treatment):
    """One keyword argument of ``DistributedDataParallel``, set to ``setting``."""

    argument: ClassVar[str]
    setting = True

    def applies_to(self, session: Session) -> str | None:
        is_set = getattr(session.settings.trainer, self.argument) is self.setting
        return _why_not("DDP", session) or (f"{self.argument} is {self.setting} already" if is_set else None)

    def trainer_objects(self, value: Any) -> dict[str, Any]:
        strategy = "lightning.pytorch.strategies.DDPStrategy"
        return {"strategy": {"class_path": strategy, "init_args": {self.argument: self.setting}}}

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


DDP_ARGUMENTS = tuple(kind.argument for kind in DdpTreatment.__subclasses__())


class Fsdp(Treatment):
    id = "fsdp"
    safety = "numerics"
    effort = "minutes"
    summary = "divides weights, gradients and optimizer states among the ranks, instead of a copy on each as with DDP"
    when = (
        "Helps where weights and optimizer states fill the memory of each GPU. For every layer the ranks then fetch "
        "weights from one another, which takes longer than DDP where the connection is slow. Lightning refuses "
        "gradient clipping by norm with it."
    )
    conflicts = frozenset({"ddp-bucket-view", "ddp-find-unused-off", "ddp-static-graph"})
    trainer_flag = "strategy"
    setting = "fsdp"

    def applies_to(self, session: Session) -> str | None:
        trainer = session.settings.trainer
        if reason := _why_not("DDP", session):
            return reason
        if session.run.world_size == 1:
            return "there is one rank, with nothing to divide among several"
        if trainer.accelerator != "cuda":
            return f"Lightning's FSDP needs GPUs, and the accelerator is {trainer.accelerator or 'not known'}"
        if trainer.gradient_clip_val and trainer.gradient_clip_algorithm != "value":
            return "Lightning refuses gradient clipping by norm with FSDP"
        return None


class FsdpCheckpointing(Treatment):
    id = "fsdp-checkpointing"
    effort = "minutes"
    summary = "has FSDP keep only the inputs of the model's repeated blocks and recompute the rest in the backward pass"
    when = (
        "The FSDP form of `activation-checkpointing`: helps where activations fill the memory. A step takes 20 to 30 % "
        "longer, so it pays only if a larger batch, or any batch, then fits."
    )
    conflicts = frozenset({"activation-checkpointing"})
    code = "from lightning.pytorch.strategies import FSDPStrategy\n# Block is the class of your repeated blocks"
    trainer_code: ClassVar = {"strategy": "FSDPStrategy(activation_checkpointing_policy={Block})"}

    def applies_to(self, session: Session) -> str | None:
        return _why_not("FSDP", session)

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        kinds = {type(block) for block in repeated_blocks(module)}
        if not seams.checkpoint_in_fsdp(trainer.strategy, kinds, undos):
            raise TreatmentError(
                f"{self.id} expected FSDPStrategy without activation_checkpointing_policy, "
                f"found {type(trainer.strategy).__name__}"
            )
