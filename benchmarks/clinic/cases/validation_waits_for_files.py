"""Validation reads each sample from a slow mount; training does not.
---
expect: PD111
also:
  PD601: certain, whereas what a faster validation loader leaves is not known
half: tune
fix:
  time.sleep(0.001): pass
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset


class Remote(Dataset):
    def __init__(self):
        self.samples = torch.rand(320, 64)

    def __len__(self):
        return len(self.samples)

    def read(self, index):
        time.sleep(0.001)  # costs time
        return self.samples[index]

    def __getitem__(self, index):
        return self.read(index)


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

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(3200, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

val_loader = DataLoader(Remote(), batch_size=32)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader, val_loader)
