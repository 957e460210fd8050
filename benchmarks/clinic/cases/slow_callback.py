"""A callback looks at the weights' histogram after each step.
---
expect: PD504
half: score
fast: true
fix:
  "if batch_idx % 1 == 0": "if batch_idx % 50 == 0"
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Histograms(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 1 == 0:
            self.last = [weight.detach().sort().values for weight in pl_module.parameters()]


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.first(batch[0])
        for _ in range(10):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = TensorDataset(torch.rand(3200, 64))
batches = BatchSampler(RandomSampler(data), batch_size=64, drop_last=True)
Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    callbacks=[Histograms()],
    enable_checkpointing=False,
    enable_progress_bar=False,
).fit(Net(), DataLoader(data, sampler=batches, batch_size=None))
