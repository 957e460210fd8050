"""One worker, which opens its archive first, is restarted in each epoch.
---
expect: PD104
half: tune
cores: 2
with:
- loader-persistent
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Computed(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        total = 0.0
        for step in range(4000):
            total += step * 0.5
        return torch.full((64,), total * 1e-9)


def open_archive(worker_id):
    time.sleep(0.1)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 2048), nn.Linear(2048, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Computed(), batch_size=16, num_workers=1, worker_init_fn=open_archive)

trainer = Trainer(
    max_epochs=10,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
