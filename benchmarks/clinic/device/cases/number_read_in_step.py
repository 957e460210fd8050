"""The peak of a frozen encoder's features is read on the host before 16 small blocks are launched.
---
expect: PD501
half: tune
fix:
  8 / peak if peak.item() > 8 else 1.0: torch.where(peak > 8, 8 / peak, 1.0)
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(256), nn.Linear(256, 256)

    def forward(self, x):
        return x + nn.functional.gelu(self.layer(self.norm(x)))


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        wide = [layer for _ in range(24) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
        self.encoder = nn.Sequential(nn.Linear(32, 4096), nn.ReLU(), *wide).requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(4096, 256), *(Block() for _ in range(16)), nn.Linear(256, 1))

    def training_step(self, batch, batch_idx):
        features = self.encoder(batch).view(64, -1, 4096).mean(1)
        peak = features.abs().max()
        factor = 8 / peak if peak.item() > 8 else 1.0  # costs time
        return self.head(features * factor).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.head.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(16384, 32) for _ in range(10)] * 8
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
