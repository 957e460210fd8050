"""Progress bar with the loss, a logger every 50 steps, a short validation per epoch and a checkpoint at the end.
---
half: tune
"""

import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        hidden = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(4, 1024), nn.ReLU(), *hidden, nn.Linear(1024, 1))

    def training_step(self, batch, batch_idx):
        loss = self.layers(batch).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layers(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=True)


def make_loader(n_batches, shuffle):
    batches = [torch.rand(131072, 4) for _ in range(5)] * (n_batches // 5)
    return DataLoader(batches, batch_size=None, shuffle=shuffle, pin_memory=True)


folder = tempfile.mkdtemp()
trainer = Trainer(
    max_epochs=3,
    accelerator="cuda",
    devices=1,
    logger=CSVLogger(folder),
    precision="bf16-mixed",
    log_every_n_steps=50,
    callbacks=[ModelCheckpoint(folder, every_n_epochs=3)],
)
trainer.fit(Net(), make_loader(110, True), make_loader(5, False))
