"""The loader is created for each epoch, which reads and sorts all data.
---
expect:
- PD603
- PD114
half: score
fix:
  reload_dataloaders_every_n_epochs=1: reload_dataloaders_every_n_epochs=0
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)

    def train_dataloader(self):
        numbers = torch.rand(3_000_000).sort().values
        data = TensorDataset(numbers[: 1920 * 64].reshape(1920, 64))
        batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
        return DataLoader(data, sampler=batches, batch_size=None)


trainer = Trainer(
    max_epochs=8,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    reload_dataloaders_every_n_epochs=1,
)
trainer.fit(Net())
