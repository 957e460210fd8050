"""The second rank reads its data from a slower disk.
---
expect: PD701
half: tune
own_process: true
cores: 2
fix:
  time.sleep(0.01): pass
"""

import os
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)


class Disk(IterableDataset):
    def __iter__(self):
        for _ in range(50):
            if os.environ.get("LOCAL_RANK", "0") == "1":
                time.sleep(0.01)
            yield torch.rand(64, 64)


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


loader = DataLoader(Disk(), batch_size=None)

trainer = Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    strategy="ddp",
    devices=2,
)
trainer.fit(Net(), loader)
