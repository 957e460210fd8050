"""The logger draws and saves a figure whenever it saves.
---
expect: PD505
half: score
fix:
  Drawing("."): TensorBoardLogger(".")
"""

import zlib

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Drawing(TensorBoardLogger):
    def save(self):
        figure = np.zeros((600, 600, 3), dtype=np.uint8)
        zlib.compress((figure + np.random.randint(0, 9, figure.shape, dtype=np.uint8)).tobytes(), 6)
        super().save()


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
        loss = self(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(3200, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=Drawing("."),
    enable_checkpointing=False,
    enable_progress_bar=False,
    log_every_n_steps=2,
)
trainer.fit(Net(), loader)
