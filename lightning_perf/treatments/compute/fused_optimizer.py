"""The optimizer's step in one kernel."""

from __future__ import annotations

from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo


class FusedOptimizer(Treatment):
    id = "fused-optimizer"
    safety = "numerics"
    summary = "updates all parameters in one fused kernel instead of an operation at a time"
    when = (
        "Adam, AdamW, SGD and Adagrad with many parameters. With fp16 it cannot be combined with gradient clipping, "
        "which Lightning refuses."
    )

    def applies_to(self, session: Session) -> str | None:
        trainer, model = session.settings.trainer, session.settings.model
        if trainer.precision == "16-mixed" and trainer.gradient_clip_val is not None:
            return "Lightning refuses a fused optimizer beside gradient clipping in fp16"
        optimizers = model.optimizers if model is not None else ()
        if optimizers and all(one.implementation == "fused" for one in optimizers):
            return "the optimizer is fused already"
        if optimizers and all(one.supports_fused is False for one in optimizers):
            return f"{optimizers[0].class_name} has no fused implementation on this device"
        return None

    def statements(self, value: Any) -> str:
        return "torch.optim.AdamW(self.parameters(), ..., fused=True)  # whichever optimizer you have"

    def configured(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        if trainer.precision == "16-mixed" and trainer.gradient_clip_val is not None:
            raise TreatmentError(
                f"fused-optimizer cannot be applied to precision={trainer.precision!r} with "
                f"gradient_clip_val={trainer.gradient_clip_val!r}: Lightning refuses the three together; "
                "use precision-bf16"
            )
        fusible = [optimizer for optimizer in trainer.optimizers if "fused" in optimizer.defaults]
        if not fusible:
            names = ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers) or "none"
            raise TreatmentError(f"no optimizer has a fused implementation: expected Adam, AdamW, SGD …, found {names}")
        undos = [_fuse(optimizer) for optimizer in fusible]

        def undo() -> None:
            while undos:
                undos.pop()()

        return undo


def _fuse(optimizer: Any) -> Undo:
    import torch

    groups = [(group, group.get("fused"), group.get("foreach")) for group in optimizer.param_groups]
    had_own = "_step_supports_amp_scaling" in vars(optimizer)
    before = vars(optimizer).get("_step_supports_amp_scaling")
    for group, _, _ in groups:
        group.update(fused=True, foreach=False)
        for parameter in group["params"]:  # states restored from a checkpoint: the kernel wants the count where it runs
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(device=parameter.device, dtype=torch.float32)
    optimizer._step_supports_amp_scaling = True  # as the constructor does for fused=True: the step unscales itself

    def undo() -> None:
        for group, fused, foreach in groups:
            group.update(fused=fused, foreach=foreach)
        if had_own:
            optimizer._step_supports_amp_scaling = before
        else:
            vars(optimizer).pop("_step_supports_amp_scaling", None)

    return undo


TREATMENT = FusedOptimizer()
