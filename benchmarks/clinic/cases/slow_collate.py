"""Samples are padded to one length element by element, in collate_fn.
---
expect: PD108
half: tune
fix:
  collate_fn=pad: collate_fn=pad_fast
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        return torch.full((300 + index % 100,), index / 640)


def pad(samples):
    rows = []
    for sample in samples:
        row = [0.0] * 400
        for place in range(len(sample)):
            row[place] = float(sample[place])  # costs time
        rows.append(row)
    return torch.tensor(rows)


def pad_fast(samples):
    rows = torch.zeros(len(samples), 400)
    for row, sample in zip(rows, samples, strict=True):
        row[: len(sample)] = sample
    return rows


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


loader = DataLoader(Sequences(), batch_size=16, shuffle=True, collate_fn=pad)

trainer = Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
