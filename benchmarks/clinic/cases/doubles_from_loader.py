"""Images leave the loader as float64, eight times the bytes that they were decoded from.
---
expect: PD203
half: tune
cores: 2
fix:
  self.images[index].astype(np.float64): self.images[index]
"""

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Images(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).integers(0, 256, (640, 3, 96, 96), dtype=np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index].astype(np.float64))


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 2048), nn.Linear(2048, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch.float().mean(dim=(2, 3))).square().mean() * 1e-6

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Images(), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
