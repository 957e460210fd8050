"""A loop of tiny operations that reads its value after each, so that a compiled call costs more than the kernel."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

WIDTH, TURNS = 8, 100


class Cell(torch.nn.Module):
    """One iteration of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((WIDTH,), 0.99))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply once."""
        return x * self.weight


class UntilSettled(LightningModule):
    """Iterate until convergence, which takes all iterations here."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        x = batch[0][0]
        for _ in range(TURNS):
            x = self.cell(x)
            if x.detach()[0].item() < 0:
                break
        return x.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-6)


if __name__ == "__main__":
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, **quiet)
    trainer.fit(UntilSettled(), DataLoader(TensorDataset(torch.ones(400_000, WIDTH)), batch_size=8))
