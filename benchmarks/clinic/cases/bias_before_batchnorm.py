"""A convolution adds a bias that the batch normalisation after it takes out again.
---
expect: PD314
half: tune
fix:
  nn.Conv2d(4, 64, 1): nn.Conv2d(4, 64, 1, bias=False)
  nn.Conv2d(64, 64, 1): nn.Conv2d(64, 64, 1, bias=False)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 64, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64)
        )

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = TensorDataset(torch.rand(320, 4, 32, 32))
batches = BatchSampler(RandomSampler(data), batch_size=8, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
