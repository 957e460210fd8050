"""A GRU over sequences, in one call of the library.
---
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 1)

    def training_step(self, batch, batch_idx):
        states, _ = self.cell(batch[0])
        return self.head(states[:, -1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


data = TensorDataset(torch.rand(640, 60, 32))
batches = BatchSampler(RandomSampler(data), batch_size=16, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    gradient_clip_val=1.0,
)
trainer.fit(Net(), loader)
