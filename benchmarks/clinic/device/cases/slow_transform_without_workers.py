"""Each recording is compressed value by value in a Python loop, in the process that trains.
---
expect: [PD107, PD101]
half: tune
fix:
  self.compress(self.recordings[index]): compress(self.recordings[index])
"""

import math

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

SCALE = 1 / math.log(256)


def compress(recording):
    return recording.sign() * (255 * recording.abs()).log1p() * SCALE


class Recordings(Dataset):
    def __init__(self):
        self.recordings = torch.rand(7680, 1024) * 2 - 1

    def __len__(self):
        return len(self.recordings)

    def compress(self, recording):
        values = []
        for value in recording.tolist():  # costs time
            loudness = math.log1p(255 * abs(value)) * SCALE  # costs time
            values.append(math.copysign(loudness, value))  # costs time
        return torch.tensor(values)

    def __getitem__(self, index):
        return self.compress(self.recordings[index])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        hidden = [layer for _ in range(5) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), *hidden, nn.Linear(1024, 1))

    def training_step(self, batch, batch_idx):
        windows = nn.functional.pad(batch, (0, 15)).unfold(1, 16, 1)
        return self.layers(windows).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


loader = DataLoader(Recordings(), batch_size=64, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
)
trainer.fit(Net(), loader)
