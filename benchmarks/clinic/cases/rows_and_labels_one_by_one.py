"""A dataset of one's own that hands out single rows and labels of tensors in memory.
---
expect: PD110
half: score
fix:
  batch_size=256, shuffle=True: sampler=in_batches(data), batch_size=None
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Table(Dataset):
    def __init__(self):
        self.rows, self.labels = torch.rand(12800, 64), torch.rand(12800)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(6):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


def in_batches(data):
    return BatchSampler(RandomSampler(data), 256, drop_last=True)


data = Table()
loader = DataLoader(data, batch_size=256, shuffle=True)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
