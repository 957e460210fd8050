"""Wide layers in float32 on a device that multiplies matrices ten times as fast in bfloat16.
---
expect: PD301
also: {PD302: "TF32 makes the same matrix multiplications faster, by less"}
half: tune
with:
- precision-bf16
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        wide = [layer for _ in range(12) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), *wide, nn.Linear(4096, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(2048, 64) for _ in range(10)] * 6
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), loader)
