"""A training in which a flag plants the outcome of a treatment.

``log_every_n_steps`` 101 changes nothing, 102 slows down every step, 103 raises, 104 hangs, 105 leaks memory, 106
returns a NaN loss.
"""

from __future__ import annotations

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

FATEFUL_STEP = 5


class Planted(LightningModule):
    """Take about thirty milliseconds per step, mostly asleep, so that a shared machine affects it little."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.hoard: list[torch.Tensor] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of one step, with the planted outcome."""
        flag = self.trainer.log_every_n_steps
        time.sleep(0.06 if flag == 102 else 0.03)
        loss = self.layer(batch[0]).square().mean()
        if batch_idx > FATEFUL_STEP:
            if flag == 103:
                raise RuntimeError("planted: missing kernel")
            if flag == 104:
                time.sleep(3600)
            if flag == 105:
                self.hoard.append(torch.ones(2**26))
            if flag == 106:
                loss = loss * float("nan")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, **quiet)
    trainer.fit(Planted(), DataLoader(TensorDataset(torch.ones(400_000, 8)), batch_size=8))
