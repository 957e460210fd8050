"""One sample in 32 takes thirty times as long as the others; two workers wait for it in turn.
---
expect: PD105
half: tune
cores: 2
fix:
  num_workers=2: num_workers=8, prefetch_factor=8
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Uneven(Dataset):
    def __init__(self):
        self.samples = torch.rand(800, 400)

    def __len__(self):
        return len(self.samples)

    def read(self, index):
        time.sleep(0.03 if index % 32 == 7 else 0.001)  # costs time
        return self.samples[index]

    def __getitem__(self, index):
        return self.read(index)


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


loader = DataLoader(Uneven(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
