"""Restarting workers takes most of each short epoch, validation a fourth.
---
expect: PD104
second: PD601
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
        return 160

    def __getitem__(self, index):
        return torch.full((64,), index * 1e-3)


def open_archive(worker_id):
    time.sleep(0.15)


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

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Computed(), batch_size=8, num_workers=1, worker_init_fn=open_archive)
val_loader = DataLoader(torch.rand(40, 64, 64), batch_size=None)

trainer = Trainer(
    max_epochs=12,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader, val_loader)
