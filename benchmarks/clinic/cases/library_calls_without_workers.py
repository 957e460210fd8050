"""Samples are made by many short library calls, and no worker makes them.
---
expect: PD101
also:
  PD107: items do not change, and keeping them in memory gains more than workers
half: tune
cores: 2
fix:
  batch_size=16: batch_size=16, num_workers=2, persistent_workers=True
"""

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Features(Dataset):
    def __init__(self):
        self.rows = np.random.default_rng(0).normal(size=(640, 20000)).astype(np.float32)

    def __len__(self):
        return len(self.rows)

    def spectrum(self, row):
        return np.abs(np.fft.rfft(row[:14000]))[:4000]

    def order(self, row):
        return np.sort(row)[:400]

    def smooth(self, row):
        return np.convolve(row, np.ones(64) / 64)[:400]

    def __getitem__(self, index):
        row = self.rows[index]
        features = self.spectrum(row)[:400] / 400 + self.order(row) + self.smooth(row[:9000])
        return torch.from_numpy(features.astype(np.float32)) / 10


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(400, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Features(), batch_size=16)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
