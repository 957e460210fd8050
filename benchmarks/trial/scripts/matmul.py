"""Wide layers on large batches: almost only matrix multiplication, in fp32."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 1536


class Stack(LightningModule):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(3)]
        self.network = torch.nn.Sequential(*layers)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        return self.network(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1000, accelerator="cpu", logger=False, **quiet)
    trainer.fit(Stack(), DataLoader(TensorDataset(torch.randn(4096, WIDTH)), batch_size=256))
