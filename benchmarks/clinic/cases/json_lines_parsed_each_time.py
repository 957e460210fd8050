"""Samples lie in memory as lines of JSON and are parsed each time that they are asked for.
---
expect: PD107
half: score
fix:
  return self.parse(self.lines[index]): return self.rows[index]
"""

import json
import random

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    def __init__(self):
        some = [json.dumps({"features": [random.random() for _ in range(600)], "id": n}) for n in range(64)]
        self.lines = some * 12
        self.rows = [self.parse(line) for line in some] * 12

    def __len__(self):
        return len(self.lines)

    def parse(self, line):
        record = json.loads(line)  # costs time
        return torch.tensor([value * 2.0 - 1.0 for value in record["features"]])  # costs time

    def __getitem__(self, index):
        return self.parse(self.lines[index])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(600, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(Lines(), batch_size=32, shuffle=True)

trainer = Trainer(
    max_epochs=10,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
