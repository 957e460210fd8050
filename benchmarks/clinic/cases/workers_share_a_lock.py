"""Workers take turns at one connection: each sample is fetched under a lock that all of them share.
---
expect: PD115
half: tune
cores: 2
fix:
  "with self.lock": "if self.lock"
"""

import multiprocessing
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Remote(Dataset):
    def __init__(self):
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return 960

    def __getitem__(self, index):
        with self.lock:  # costs time
            time.sleep(0.001)  # costs time
        return torch.full((64,), index * 1e-4)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 512), nn.Linear(512, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(2):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Remote(), batch_size=16, num_workers=4, persistent_workers=True)

trainer = Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
