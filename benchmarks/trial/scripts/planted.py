"""A training whose fate hangs on a flag: a harmless treatment becomes a decoy, a brake, a crash, a hang, a hog, poison.

``log_every_n_steps`` 101 changes nothing, 102 slows every step down, 103 raises, 104 hangs, 105 takes ever more memory,
106 yields NaN.
"""

from __future__ import annotations

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

FATEFUL_STEP = 5


class Planted(LightningModule):
    """A step of some thirty milliseconds, nearly all of it waiting: a shared machine's pace changes it little."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.hoard: list[torch.Tensor] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """One step, as the flag has it."""
        told = self.trainer.log_every_n_steps
        time.sleep(0.06 if told == 102 else 0.03)
        loss = self.layer(batch[0]).square().mean()
        if batch_idx > FATEFUL_STEP:
            if told == 103:
                raise RuntimeError("planted: a kernel went missing")
            if told == 104:
                time.sleep(3600)
            if told == 105:
                self.hoard.append(torch.ones(2**26))
            if told == 106:
                loss = loss * float("nan")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, **quiet)
    trainer.fit(Planted(), DataLoader(TensorDataset(torch.ones(400_000, 8)), batch_size=8))
