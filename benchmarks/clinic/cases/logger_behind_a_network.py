"""The logger takes 40 ms to hand each row to a server.
---
expect: PD505
half: tune
fast: true
fix:
  time.sleep(0.04): pass
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Remote(CSVLogger):
    def log_metrics(self, metrics, step=None):
        time.sleep(0.04)  # asks a server
        super().log_metrics(metrics, step)


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
    logger=Remote("."),
    enable_checkpointing=False,
    enable_progress_bar=False,
    log_every_n_steps=5,
)
trainer.fit(Net(), loader)
