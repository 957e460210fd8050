"""A compiled function reads a number in each round of a loop, and so is not compiled at all.
---
expect: PD312
half: tune
fix:
  print(float(hidden.mean()), file=self.file): pass
"""

import os

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 1024), nn.Linear(1024, 1)
        self.compiled = torch.compile(self.encode)
        self.file = open(os.devnull, "w")  # noqa: SIM115 - for as long as the training lasts

    def encode(self, x):
        hidden = self.first(x)
        for _ in range(12):
            hidden = torch.relu(hidden * 1.01 + 0.01)
            print(float(hidden.mean()), file=self.file)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self.compiled(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(12800, 64))
batches = BatchSampler(RandomSampler(data), batch_size=256, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
