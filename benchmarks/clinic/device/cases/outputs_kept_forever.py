"""A callback keeps every step's activations on the device, 64 MiB each.
---
expect: PD405
half: tune
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Keeper(Callback):
    def __init__(self):
        self.kept = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.kept.append(pl_module.hidden.detach())


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 2048), nn.ReLU())
        hidden = [layer for _ in range(10) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(2048, 1))

    def training_step(self, batch, batch_idx):
        self.hidden = self.first(batch)
        return self.layers(self.hidden).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


batches = [torch.rand(16384, 64) for _ in range(11)] * 10
loader = DataLoader(batches, batch_size=None, shuffle=True, pin_memory=True)

trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
    callbacks=[Keeper()],
)
trainer.fit(Net(), loader)
