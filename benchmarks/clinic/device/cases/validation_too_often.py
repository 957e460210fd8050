"""Four rounds of validation per epoch, each on 75 batches after 25 batches of training.
---
expect: PD601
half: tune
with:
- val-less-often=1.0
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        hidden = [layer for _ in range(2) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), *hidden, nn.Linear(4096, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layers(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


def make_loader(n_batches, shuffle):
    batches = [torch.rand(16384, 64) for _ in range(5)] * (n_batches // 5)
    return DataLoader(batches, batch_size=None, shuffle=shuffle, pin_memory=True)


trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    precision="bf16-mixed",
    check_val_every_n_epoch=1,
    val_check_interval=0.25,
)
trainer.fit(Net(), make_loader(100, True), make_loader(75, False))
