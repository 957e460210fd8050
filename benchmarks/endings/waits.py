"""A training that waits for a known reason, in which the hang watch must report nothing; started by ``alarms.py``.

Prints the number of hangs that were reported.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_perf import PerfDoctor


class SlowDisk(TorchCheckpointIO):
    """Writes checkpoints to a slow disk."""

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Write one."""
        time.sleep(wait_s)
        super().save_checkpoint(*args, **kwargs)


class SlowObject:
    """Takes long to be saved by ``torch.save``."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        time.sleep(wait_s)
        return SlowObject, ()


def slow_backend(graph: Any, _: Any) -> Any:
    """Compile slowly."""
    time.sleep(wait_s)
    return graph.forward


class Model(LightningModule):
    """Waits once, in the way that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.compiled = torch.compile(self.layer, backend=slow_backend)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        time.sleep(0.005)
        is_now = batch_idx == WAITS_AT
        if is_now and kind == "pdb":
            breakpoint()
        if is_now and kind == "input":
            input("go on? ")
        if is_now and kind == "torch.save":
            torch.save(SlowObject(), "object.pt")
        if is_now and kind == "planted":
            time.sleep(wait_s)
        layer = self.compiled if is_now and kind == "compile" else self.layer
        return layer(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Wait for one slow batch."""
        if kind == "validation" and not self.trainer.sanity_checking:
            time.sleep(wait_s)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


if __name__ == "__main__":
    kind, wait_s, hang_after_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    WAITS_AT = 300
    torch.set_num_threads(1)
    doctor = PerfDoctor(reports=["console"], options={"hang_after_s": hang_after_s})
    callbacks: list[Callback] = [doctor]
    if kind == "checkpoint":
        callbacks.append(ModelCheckpoint(every_n_train_steps=WAITS_AT))
    data = DataLoader(TensorDataset(torch.ones(400 * 4, 8)), batch_size=4)
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=kind == "checkpoint",
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=WAITS_AT,
        callbacks=callbacks,
        plugins=[SlowDisk()] if kind == "checkpoint" else [],
    )
    trainer.fit(Model(), data, DataLoader(TensorDataset(torch.ones(4, 8)), batch_size=4))
    assert doctor.session is not None
    print(f"\nhangs: {len(doctor.session.hangs)} missing: {doctor.session.missing.get('hangs')}")
