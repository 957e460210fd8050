"""The fastest convolution algorithm, found by trying."""

from __future__ import annotations

from typing import Any

from lightning_perf.errors import TreatmentError
from lightning_perf.records import Session
from lightning_perf.treatments.treatment import Treatment, Undo


class CudnnBenchmark(Treatment):
    id = "cudnn-benchmark"
    safety = "numerics"
    summary = "lets cuDNN try its convolution algorithms for each input shape and keep the fastest"
    when = "With convolutions on inputs of one shape. Where shapes keep changing, every new one is tried anew: slower."
    is_live = True

    def applies_to(self, session: Session) -> str | None:
        if session.settings.trainer.accelerator in ("cpu", "mps", None):
            return f"the accelerator is {session.settings.trainer.accelerator or 'not known'}: it has no cuDNN"
        if session.settings.trainer.is_deterministic:
            return "the training is deterministic, which leaves cuDNN no choice"
        return "benchmark is on already" if session.settings.torch.is_cudnn_benchmark_on else None

    def trainer_flags(self, value: Any, session: Session | None = None) -> dict[str, Any]:
        return {"benchmark": True}

    def change_trainer_arguments(self, value: Any, arguments: dict[str, Any]) -> Undo | None:
        if arguments.get("deterministic"):
            raise TreatmentError(
                f"benchmark=True cannot be set beside deterministic={arguments['deterministic']!r}, which leaves cuDNN "
                "no choice"
            )
        arguments["benchmark"] = True
        return _Restore()

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        import torch

        undo = _Restore()
        torch.backends.cudnn.benchmark = True  # the Trainer's flag did so, unless a fit before this put it back
        return undo


class _Restore:
    """Puts cuDNN's flag back; travels to the processes that a Trainer spawns, as a closure could not."""

    def __init__(self) -> None:
        import torch

        self._before = torch.backends.cudnn.benchmark

    def __call__(self) -> None:
        import torch

        torch.backends.cudnn.benchmark = self._before


TREATMENT = CudnnBenchmark()
