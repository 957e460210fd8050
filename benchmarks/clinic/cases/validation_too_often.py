"""Four rounds of validation an epoch, each on as much data as is trained on between them.
---
expect: PD601
half: score
fast: true
fix:
  "val_check_interval=0.25": "check_val_every_n_epoch=4"
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 1)

    def loss(self, batch):
        hidden = self.first(batch[0])
        for _ in range(10):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden).square().mean()

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(n_batches):
    data = TensorDataset(torch.rand(64 * n_batches, 64))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None)


Trainer(
    max_epochs=9,
    accelerator="cpu",
    logger=False,
    val_check_interval=0.25,
    enable_checkpointing=False,
    enable_progress_bar=False,
).fit(Net(), loader(40), loader(20))
