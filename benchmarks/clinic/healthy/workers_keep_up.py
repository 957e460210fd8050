"""Two persistent workers wait for a slow disk and still have each batch ready before it is asked for.
---
half: tune
cores: 2
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Files(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        time.sleep(0.001)  # the disk
        return torch.full((64,), index * 1e-4)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(120)), nn.Linear(64, 1)
        )

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Files(), batch_size=4, num_workers=2, persistent_workers=True, prefetch_factor=4)

trainer = Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
