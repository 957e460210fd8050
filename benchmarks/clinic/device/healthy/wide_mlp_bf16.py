"""Wide layers and large batches in bfloat16.
---
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        hidden = [layer for _ in range(4) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), *hidden, nn.Linear(4096, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(16384, 64) for _ in range(13)] * 10
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
