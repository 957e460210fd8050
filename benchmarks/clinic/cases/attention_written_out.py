"""Attention as softmax(q k) v over 384 positions, with the matrix of scores in memory.
---
expect: PD309
half: tune
fix:
  self.attend(query, key, value): nn.functional.scaled_dot_product_attention(query, key, value)
"""

import math

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(32, 96)

    def attend(self, query, key, value):
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        return scores.softmax(dim=-1) @ value

    def training_step(self, batch, batch_idx):
        query, key, value = self.project(batch[0]).view(4, 384, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return self.attend(query, key, value).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(160, 384, 32))
batches = BatchSampler(RandomSampler(data), batch_size=4, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
