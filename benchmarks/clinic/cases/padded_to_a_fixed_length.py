"""All sequences are padded to 256 tokens, though none has more than 64.
---
expect: PD116
half: score
fix:
  LENGTH = 256: LENGTH = 64
"""

import random

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

LENGTH = 256


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(1000, 64, padding_idx=0)
        self.encoder = nn.Sequential(*(nn.GELU() for _ in range(8)))
        self.last = nn.Linear(64, 1)

    def training_step(self, batch, batch_idx):
        hidden = self.encoder(self.table(batch[0]))
        is_word = (batch[0] != 0).unsqueeze(2)
        return ((self.last(hidden) * is_word).sum() / is_word.sum()).square()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


lengths = torch.tensor([random.randint(20, 64) for _ in range(960)]).unsqueeze(1)
tokens = torch.randint(1, 1000, (960, LENGTH)) * (torch.arange(LENGTH) < lengths)
data = TensorDataset(tokens)
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 16, drop_last=True), batch_size=None)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
