"""Each sample reads a whole file of two megabytes for one row of it.
---
expect:
- PD107
- PD101
half: tune
with: [dataset-cache]
"""

import tempfile

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 960

    def __getitem__(self, index):
        return torch.from_numpy(np.load(self.path)[index].copy())  # costs time


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(512, 2048), nn.Linear(2048, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch)
        for _ in range(24):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


with tempfile.TemporaryDirectory() as folder:
    np.save(f"{folder}/rows.npy", np.random.default_rng(0).random((960, 512), dtype=np.float32))
    loader = DataLoader(Rows(f"{folder}/rows.npy"), batch_size=16, shuffle=True)
    trainer = Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Net(), loader)
