"""Epochs are a few steps long, and the sampler orders a table of millions before each.
---
expect:
- PD603
- PD114
half: tune
fix:
  torch.randperm(2_000_000): torch.randint(3200, (960,))
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Few(Sampler):
    def __iter__(self):
        order = torch.randperm(2_000_000)
        for step in range(15):
            yield (order[step * 64 : step * 64 + 64] % 3200).tolist()

    def __len__(self):
        return 15


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


data = TensorDataset(torch.rand(3200, 64))
loader = DataLoader(data, sampler=Few(), batch_size=None)

trainer = Trainer(
    max_epochs=16,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
