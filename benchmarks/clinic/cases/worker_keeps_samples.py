"""A worker caches every sample it has ever made.
---
expect: PD113
half: score
cores: 2
"""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Caching(Dataset):
    def __init__(self):
        self.cache = []

    def __len__(self):
        return 3200

    def __getitem__(self, index):
        self.cache.append(bytearray(os.urandom(64)) * 512)
        return torch.full((64,), index * 1e-4)


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


loader = DataLoader(Caching(), batch_size=16, num_workers=1, persistent_workers=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
