"""Checkpoints written beside the training."""

from __future__ import annotations

from typing import Any

from lightning_perf import seams
from lightning_perf.errors import TreatmentError
from lightning_perf.treatments.treatment import Treatment, Undo


class AsyncCheckpoint(Treatment):
    id = "async-checkpoint"
    summary = "writes checkpoints in a thread while the training goes on"
    when = "Where writing checkpoints shows. The state is copied first, which takes its size in memory."
    acts_on = "loop"

    def trainer_code(self, value: Any) -> dict[str, str]:
        return {"plugins": "[AsyncCheckpointIO()]"}

    def trainer_yaml(self, value: Any) -> dict[str, Any]:
        return {"plugins": [{"class_path": "lightning.pytorch.plugins.io.AsyncCheckpointIO"}]}

    def imports(self, value: Any) -> str:
        return "from lightning.pytorch.plugins.io import AsyncCheckpointIO"

    def set_up(self, value: Any, trainer: Any, module: Any) -> Undo | None:
        undo = seams.write_checkpoints_beside(trainer)
        if undo is None:
            kind = type(trainer.strategy.checkpoint_io).__name__
            raise TreatmentError(f"async-checkpoint expected Lightning's own way of writing checkpoints, found {kind}")
        return undo


TREATMENT = AsyncCheckpoint()
