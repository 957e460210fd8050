"""The dataset reads its index again at the start of each epoch.
---
expect:
- PD114
- PD603
half: tune
fix:
  time.sleep(0.15): pass
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self):
        self.batches = torch.rand(40, 64, 64)

    def read_index(self):
        time.sleep(0.15)

    def __iter__(self):
        self.read_index()
        yield from self.batches


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
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Stream(), batch_size=None)

trainer = Trainer(
    max_epochs=7,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
