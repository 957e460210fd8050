"""Eight workers compute samples on two cores.
---
expect: PD102
half: score
cores: 2
fix:
  num_workers=8: num_workers=1
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Mixed(Dataset):
    def __init__(self):
        self.rows = torch.rand(960, 256)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        total = 0.0
        for step in range(2500):
            total += step * 0.5
        return self.rows[index] + total * 1e-12


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 2048), nn.Linear(2048, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Mixed(), batch_size=32, shuffle=True, num_workers=8, persistent_workers=True)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
