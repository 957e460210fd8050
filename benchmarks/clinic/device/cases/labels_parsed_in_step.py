"""training_step parses the labels from JSON each time.
---
expect: PD511
half: tune
fix:
  self.labels = TEXT: self.labels = json.loads(TEXT)
  json.loads(self.labels): self.labels
"""

import json

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

TEXT = json.dumps([{"id": n, "score": n / 7, "box": [n / 3, n / 5, n / 9, n / 11]} for n in range(7_000)])


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        hidden = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), *hidden, nn.Linear(2048, 1))
        self.labels = TEXT

    def training_step(self, batch, batch_idx):
        labels = json.loads(self.labels)  # costs time
        return (self.layers(batch) - labels[batch_idx]["score"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(16384, 64) for _ in range(10)] * 10
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

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
