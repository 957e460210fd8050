"""Forecast of electricity load with an N-BEATS-like stack of residual blocks; the gradient norm of each parameter is
taken and logged at every step although the logger writes every 50 steps.
---
expect: PD502
half: tune
fix:
  ? "norms = grad_norm(self, norm_type=2)  # costs time"
  : |2-
    if (self.global_step + 1) % self.trainer.log_every_n_steps:
                return
            norms = grad_norm(self, norm_type=2)
"""

import math

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HISTORY, HORIZON = 168, 24


def load_windows(n):
    hours = torch.arange(n + HISTORY + HORIZON).float()
    series = torch.sin(hours * 2 * math.pi / 24) + 0.5 * torch.sin(hours * 2 * math.pi / 168)
    series = series + 0.1 * torch.randn(len(hours))
    windows = series.unfold(0, HISTORY + HORIZON, 1)[:n]
    return TensorDataset(windows[:, :HISTORY].contiguous(), windows[:, HISTORY:].contiguous())


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(HISTORY, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.backcast = nn.Linear(width, HISTORY)
        self.forecast = nn.Linear(width, HORIZON)

    def forward(self, x):
        h = self.body(x)
        return x - self.backcast(h), self.forecast(h)


class LoadForecaster(LightningModule):
    def __init__(self, blocks=8, width=96):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x):
        total = 0.0
        for block in self.blocks:
            x, part = block(x)
            total = total + part
        return total

    def training_step(self, batch, batch_idx):
        past, future = batch
        loss = F.smooth_l1_loss(self(past), future)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms = grad_norm(self, norm_type=2)  # costs time
        self.log_dict(norms)  # costs time

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(2)
    loader = DataLoader(load_windows(4800), batch_size=64, shuffle=True)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=CSVLogger(".", name="load_logs"),
    )
    trainer.fit(LoadForecaster(), loader)
