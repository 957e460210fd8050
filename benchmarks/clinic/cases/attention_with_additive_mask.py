"""Causal attention with an additive mask and the whole matrix of scores.
---
expect: PD309
half: tune
fix:
  self.attend(query, key, value): nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 192)
        self.register_buffer("mask", torch.full((512, 512), float("-inf")).triu(1))

    def attend(self, query, key, value):
        scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2)) + self.mask
        return torch.matmul(torch.softmax(scores, dim=-1), value)

    def training_step(self, batch, batch_idx):
        query, key, value = self.project(batch[0]).view(2, 512, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return self.attend(query, key, value).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


data = TensorDataset(torch.rand(80, 512, 64))
batches = BatchSampler(RandomSampler(data), batch_size=2, drop_last=True)
loader = DataLoader(data, sampler=batches, batch_size=None)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
