"""Samples cost a millisecond, spread over several functions, and no worker makes them.
---
expect: PD101
also:
  PD107: items do not change, and keeping them in memory gains more than workers
half: tune
cores: 2
fix:
  batch_size=16: batch_size=16, num_workers=2, persistent_workers=True
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Computed(Dataset):
    def __len__(self):
        return 640

    def decode(self, index):
        return [index * 0.5 + step for step in range(3000)]

    def crop(self, pixels):
        return [pixel * 0.5 for pixel in pixels[:2500]]

    def flip(self, pixels):
        return [pixel + 1.0 for pixel in reversed(pixels)]

    def scale(self, pixels):
        return [pixel * 1e-4 for pixel in pixels]

    def __getitem__(self, index):
        return torch.tensor(self.scale(self.flip(self.crop(self.decode(index))))[:400])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(400, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Computed(), batch_size=16)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
