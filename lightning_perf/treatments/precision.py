"""Treatments of numeric precision."""

from functools import partial
from typing import Any, ClassVar

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.records import HALF_PRECISIONS, Session

from .treatment import Treatment, clipped_by


class _Precision(Treatment):
    """``Trainer(precision=...)`` set to another format.

    Attributes:
        replaces: Values of the flag that it improves on.
    """

    trainer_flag = "precision"
    replaces: ClassVar[tuple[str, ...]] = ("32-true",)

    def applies_to(self, session: Session) -> str | None:
        precision = session.settings.trainer.precision
        is_replaced = precision is None or {"32": "32-true"}.get(precision, precision) in self.replaces
        return None if is_replaced else f"precision is {precision}, not {' or '.join(self.replaces)}"

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any], undos: seams.Undos) -> None:
        plugins = arguments.get("plugins")
        for plugin in plugins if isinstance(plugins, (list, tuple)) else [plugins]:
            if any(base.__name__ == "Precision" for base in type(plugin).__mro__):
                raise TreatmentError(
                    f"precision={self.setting!r} cannot be set beside the plugin {type(plugin).__name__}; "
                    "exchange the plugin instead"
                )
        super().change_trainer_arguments(value, arguments, undos)


class _MixedPrecision(_Precision):
    """A 16-bit format inside the step, with weights in float32."""

    safety = "numerics"

    def applies_to(self, session: Session) -> str | None:
        if session.settings.clips_fused:
            return f"with precision={self.setting!r}, Lightning does not clip gradients of fused optimizers"
        return super().applies_to(session)

    def configured(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        fused = [each for each in trainer.optimizers if getattr(each, "_step_supports_amp_scaling", False)]
        clipping = clipped_by(trainer, module)
        if fused and clipping:
            raise TreatmentError(
                f"{self.id} cannot be applied to {clipping} with a fused {type(fused[0]).__name__}: Lightning refuses "
                "the three together; set fused=False"
            )


def _without_fast(kind: str, session: Session) -> str | None:
    slow = [device.name for device in session.machine.devices if getattr(device, f"has_fast_{kind}") is False]
    return f"{slow[0]} has no fast {kind}" if slow else None


class PrecisionBf16(_MixedPrecision):
    id = "precision-bf16"
    summary = "computes matrix multiplications and convolutions in bfloat16; weights stay in float32"
    when = (
        "Helps on hardware with fast bf16: NVIDIA Ampere and newer, AMD CDNA, some CPUs. Elsewhere it is slower; on a "
        "CPU, measure it. It needs no loss scaling."
    )
    conflicts = frozenset({"precision-fp16"})
    setting = "bf16-mixed"

    def applies_to(self, session: Session) -> str | None:
        return super().applies_to(session) or _without_fast("bf16", session)


class PrecisionBf16True(_Precision):
    id = "precision-bf16-true"
    safety = "semantics"  # an update of less than 1/256 of a weight is rounded away, and so is part of each batch
    summary = "trains in bfloat16 alone: weights, gradients, optimizer state, batches and checkpoints too"
    when = (
        "Where weights and optimizer state fill the memory: they need half of it, and nothing is cast as in mixed "
        "precision. Updates much smaller than their weight are lost, so compare the final quality, above all with "
        "small learning rates. Code that creates float32 tensors may fail. Afterwards, weights are float32 again."
    )
    conflicts = frozenset({"precision-bf16", "precision-fp16"})
    setting = "bf16-true"
    replaces = ("32-true", "bf16-mixed")

    def applies_to(self, session: Session) -> str | None:
        return super().applies_to(session) or _without_fast("bf16", session)

    def set_up(self, value: Any, trainer: Any, module: Any, undos: seams.Undos) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        if any(tensor.is_complex() for tensor in tensors):
            raise TreatmentError(f"{self.id} would discard the imaginary part of the module's complex weights")
        if type(trainer.precision_plugin).__name__ == "HalfPrecision":  # others keep weights of their own
            undos.note(partial(_restore_dtypes, [(one, one.dtype) for one in tensors if one.is_floating_point()]))


def _restore_dtypes(tensors: list[tuple[Any, Any]]) -> None:
    """Give weights that Lightning converted the dtype that they had before."""
    for tensor, dtype in tensors:
        tensor.data = tensor.data.to(dtype)
        if tensor.grad is not None:
            tensor.grad = tensor.grad.to(dtype)


class PrecisionFp16(_MixedPrecision):
    id = "precision-fp16"
    summary = "computes matrix multiplications and convolutions in float16 with loss scaling; weights stay in float32"
    when = (
        "For devices with fast fp16 but no fast bf16 (NVIDIA Volta and Turing). In mixed precision, Lightning refuses "
        "to clip gradients of a fused optimizer."
    )
    conflicts = frozenset({"precision-bf16"})
    setting = "16-mixed"

    def applies_to(self, session: Session) -> str | None:
        if (reason := super().applies_to(session)) is not None:
            return reason
        if session.settings.trainer.accelerator in ("cpu", None):
            return "float16 on a CPU is slower than float32"
        return _without_fast("fp16", session)


class Precision32(_Precision):
    id = "precision-32"
    safety = "numerics"
    summary = "computes everything in float32"
    when = "Where 16-bit precision is slower than float32: on CPUs and GPUs without fast 16-bit products."
    conflicts = frozenset({"precision-bf16", "precision-bf16-true", "precision-fp16"})
    setting = "32-true"
    replaces = HALF_PRECISIONS


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
