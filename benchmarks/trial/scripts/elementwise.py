"""A long chain of element-wise operations on large tensors, whose memory traffic a compiler removes."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[torch.Tensor]):
    """Random samples."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 4096 * 2000

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.ones(len(indices), 256)


class Chain(LightningModule):
    """Apply sixty operations to each element."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(256))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        x = batch * self.scale
        for _ in range(20):
            x = torch.relu(x * 0.9 + 0.1)  # cheap operations: their cost is reading and writing the tensor
        return x.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, **quiet)
    trainer.fit(Chain(), DataLoader(Samples(), batch_size=4096, collate_fn=lambda batch: batch))
