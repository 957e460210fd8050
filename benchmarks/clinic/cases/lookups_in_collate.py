"""Each batch asks a service for its labels when it is put together, and waits for the answer.
---
expect:
- PD108
- PD106
half: score
fix:
  time.sleep(0.012): pass
"""

import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


def with_labels(rows):
    time.sleep(0.012)  # costs time
    return torch.stack(rows)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 1024), nn.Linear(1024, 1)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(16):
            hidden = nn.functional.gelu(hidden)
        return self.last(hidden)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, fused=True)


loader = DataLoader(list(torch.rand(960, 256)), batch_size=32, shuffle=True, collate_fn=with_labels)

trainer = Trainer(
    max_epochs=6,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
