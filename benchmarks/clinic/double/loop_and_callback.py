"""A Python loop over rows costs most of the step, a callback some.
---
expect: PD304
second: PD504
half: tune
fix:
  self.summed(self(batch[0])): self(batch[0]).square().sum()
"""

import time

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Sender(Callback):
    def on_train_batch_end(self, *_):
        time.sleep(0.003)  # asks a server


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 512), nn.Linear(512, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(2):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self.summed(self(batch[0])) / 64

    def summed(self, rows):
        loss = 0.0
        for index in range(len(rows)):
            loss = loss + rows[index].square().sum().sqrt().exp()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(6400, 64))
batches = BatchSampler(RandomSampler(data), batch_size=128, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[Sender()],
)
trainer.fit(Net(), loader)
