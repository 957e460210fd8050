"""Treatments of numeric precision."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session

from .treatment import Treatment


class MixedPrecision(Treatment):
    """``Trainer(precision=...)`` set to a 16-bit format."""

    safety = "numerics"
    trainer_flag = "precision"

    def applies_to(self, session: Session) -> str | None:
        precision = session.settings.trainer.precision
        if session.settings.clips_fused:
            return f"with precision={self.setting!r}, Lightning does not clip gradients of fused optimizers"
        return None if precision in (None, "32-true", "32") else f"precision is {precision}, not 32-true"

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any], undos: seams.Undos) -> None:
        plugins = arguments.get("plugins")
        for plugin in plugins if isinstance(plugins, (list, tuple)) else [plugins]:
            if any(base.__name__ == "Precision" for base in type(plugin).__mro__):
                raise TreatmentError(
                    f"precision={self.setting!r} cannot be set beside the plugin {type(plugin).__name__}; "
                    "exchange the plugin instead"
                )
        super().change_trainer_arguments(value, arguments, undos)

    def configured(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        fused = [each for each in trainer.optimizers if getattr(each, "_step_supports_amp_scaling", False)]
        if fused and trainer.gradient_clip_val:
            raise TreatmentError(
                f"{self.id} cannot be applied to gradient_clip_val={trainer.gradient_clip_val!r} with a fused "
                f"{type(fused[0]).__name__}: Lightning refuses the three together; set fused=False"
            )


class PrecisionBf16(MixedPrecision):
    id = "precision-bf16"
    summary = "computes matrix multiplications and convolutions in bfloat16; weights stay in float32"
    when = (
        "Helps on hardware with fast bf16: NVIDIA Ampere and newer, AMD CDNA, some CPUs. Elsewhere it is slower; on a "
        "CPU, measure it. It needs no loss scaling."
    )
    conflicts = frozenset({"precision-fp16"})
    setting = "bf16-mixed"

    def applies_to(self, session: Session) -> str | None:
        slow = [device.name for device in session.machine.devices if device.has_fast_bf16 is False]
        return super().applies_to(session) or (f"{slow[0]} has no fast bf16" if slow else None)


class PrecisionFp16(MixedPrecision):
    id = "precision-fp16"
    summary = "computes matrix multiplications and convolutions in float16 with loss scaling; weights stay in float32"
    when = (
        "For devices with fast fp16 but no fast bf16 (NVIDIA Volta and Turing). In neither format can gradients of a "
        "fused optimizer be clipped: Lightning refuses that."
    )
    conflicts = frozenset({"precision-bf16"})
    setting = "16-mixed"

    def applies_to(self, session: Session) -> str | None:
        if (reason := super().applies_to(session)) is not None:
            return reason
        if session.settings.trainer.accelerator in ("cpu", None):
            return "float16 on a CPU is slower than float32"
        slow = [device.name for device in session.machine.devices if device.has_fast_fp16 is False]
        return f"{slow[0]} has no fast fp16" if slow else None


class MatmulPrecisionHigh(Treatment):
    id = "matmul-precision-high"
    safety = "numerics"
    summary = "allows TF32 for matrix multiplication of float32 tensors"
    when = "On NVIDIA Ampere and newer, if you keep float32. `=medium` also allows bfloat16 inside the products."
    is_live = True
    value_form = "high or medium"
    value_pattern = "high|medium"
    default = "high"

    def applies_to(self, session: Session) -> str | None:
        accelerator = session.settings.trainer.accelerator
        if accelerator in ("cpu", "mps", None):
            return f"the accelerator is {accelerator or 'not known'}: it has no TF32"
        now = session.settings.torch.float32_matmul_precision
        return f"float32_matmul_precision is {now} already" if now not in (None, "highest") else None

    def statements(self, value: Any) -> str:
        return f'torch.set_float32_matmul_precision("{value}")'

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        import torch

        undos.note(partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
        torch.set_float32_matmul_precision(value)


TREATMENTS = (PrecisionBf16(), PrecisionFp16(), MatmulPrecisionHigh())
