"""A callback that takes as long as the step, and validation that takes a fourth of the time.
---
expect: PD504
second: PD601
half: tune
fast: true
fix:
  time.sleep(0.03): pass
"""

import time

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Sender(Callback):
    def on_train_batch_end(self, *_):
        time.sleep(0.03)  # asks a server


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
        self.log("val_loss", self(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


def make_loader(n_batches):
    data = TensorDataset(torch.rand(64 * n_batches, 64))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)


trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    callbacks=[Sender()],
)
trainer.fit(Net(), make_loader(30), make_loader(60))
