"""A deep network of narrow layers in float64.
---
expect: PD315
half: tune
fix:
  Net().double(): Net()
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 128), nn.GELU())

    def forward(self, x):
        return x + self.layers(x)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 128), *(Block() for _ in range(10)), nn.Linear(128, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch.to(self.dtype)).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(131072, 3) for _ in range(15)] * 10
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net().double(), loader)
