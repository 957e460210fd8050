"""Two hundred tiny layers, each faster to compute than to launch.
---
expect: PD303
half: tune
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        tiny = [layer for _ in range(200) for layer in (nn.Linear(64, 64), nn.Tanh())]
        self.layers = nn.Sequential(*tiny, nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(64, 64) for _ in range(150)]
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
