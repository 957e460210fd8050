"""A residual network of fully connected blocks forecasts the next day of an electricity load from the last week.
The table's float64 columns are handed over as they are, and precision="64-true" makes the whole model double precision
to fit them.
---
expect: PD315
half: score
fix:
  "    values = torch.tensor(table)": "    values = torch.tensor(table, dtype=torch.float32)"
  '        precision="64-true",': '        precision="32-true",'
"""

import tempfile

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HISTORY, HORIZON = 168, 24


def make_load(hours, seed):
    """Columns: load and temperature, both standardised."""
    rng = np.random.default_rng(seed)
    clock = np.arange(hours)
    day = np.sin(2 * np.pi * (clock % 24 - 8) / 24)
    week = np.where(clock // 24 % 7 < 5, 0.3, -0.5)
    temperature = 10 - 12 * np.cos(2 * np.pi * clock / (24 * 365)) + 4 * day + rng.normal(0, 1, hours)
    load = day + week + 0.04 * np.abs(temperature - 16) + 0.1 * rng.normal(size=hours)
    table = np.stack([load, temperature], axis=1)
    return (table - table.mean(axis=0)) / table.std(axis=0)


def windows(table):
    values = torch.tensor(table)
    slices = values.unfold(0, HISTORY + HORIZON, 3)
    history = slices[:, :, :HISTORY].flatten(1)
    return TensorDataset(history.contiguous(), slices[:, 0, HISTORY:].contiguous())


class Block(nn.Module):
    def __init__(self, size_in, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(size_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.backcast = nn.Linear(width, size_in)
        self.forecast = nn.Linear(width, HORIZON)

    def forward(self, x):
        h = self.body(x)
        return x - self.backcast(h), self.forecast(h)


class LoadForecast(L.LightningModule):
    def __init__(self, blocks=4, width=128):
        super().__init__()
        self.blocks = nn.ModuleList(Block(2 * HISTORY, width) for _ in range(blocks))

    def forward(self, x):
        total = 0
        for block in self.blocks:
            x, part = block(x)
            total = total + part
        return total

    def training_step(self, batch, batch_idx):
        history, future = batch
        loss = F.smooth_l1_loss(self(history), future)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        history, future = batch
        self.log("val_mae", F.l1_loss(self(history), future))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
        return [optimizer], [schedule]


if __name__ == "__main__":
    L.seed_everything(7)
    train = DataLoader(windows(make_load(48_000, 0)), batch_size=256, shuffle=True, drop_last=True)
    val = DataLoader(windows(make_load(4_000, 1)), batch_size=512)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="64-true",
        max_epochs=3,
        logger=CSVLogger(tempfile.mkdtemp()),
        callbacks=[LearningRateMonitor()],
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(LoadForecast(), train, val)
