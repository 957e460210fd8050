"""A small transformer forecasts the next day of electricity load; steps whose loss is not finite are to be skipped. For
that, optimizer_step evaluates the closure to look at the loss and then hands it to the optimizer, which runs it again.
---
expect: PD610
fix:
  ? "        optimizer.step(closure=optimizer_closure)  # costs time"
  : "        optimizer.step()"
half: tune
"""

import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

HISTORY = 96
HORIZON = 24


def make_windows(households, hours, stride, seed):
    gen = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).float()
    phase = torch.rand(households, 1, generator=gen)
    daily = torch.sin(2 * math.pi * (t / 24 + phase))
    weekly = 0.5 * torch.sin(2 * math.pi * (t / 168 + phase))
    level = 0.5 * torch.randn(households, 1, generator=gen)
    load = level + daily + weekly + 0.2 * torch.randn(households, hours, generator=gen)
    windows = load.unfold(1, HISTORY + HORIZON, stride).reshape(-1, HISTORY + HORIZON)
    return TensorDataset(windows[:, :HISTORY].contiguous(), windows[:, HISTORY:].contiguous())


class LoadForecaster(L.LightningModule):
    def __init__(self, width=64, depth=2, warmup=50, lr=1e-3):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.position = nn.Parameter(0.02 * torch.randn(HISTORY // 4, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width * HISTORY // 4, HORIZON)
        self.warmup, self.lr = warmup, lr

    def forward(self, history):
        patches = history.view(len(history), HISTORY // 4, 4)
        x = self.encoder(self.embed(patches) + self.position)
        return self.head(x.flatten(1))

    def training_step(self, batch, batch_idx):
        history, future = batch
        loss = F.huber_loss(self(history), future)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        history, future = batch
        self.log("val_mae", F.l1_loss(self(history), future), batch_size=len(history))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01, fused=True)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        scale = min(1.0, (self.trainer.global_step + 1) / self.warmup)
        for group in optimizer.param_groups:
            group["lr"] = scale * self.lr
        loss = optimizer_closure()
        if loss is None or not torch.isfinite(loss):
            return
        optimizer.step(closure=optimizer_closure)  # costs time


def batches(data, sampler, batch_size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), batch_size, drop_last=False), batch_size=None)


def main():
    L.seed_everything(31)
    train = make_windows(households=64, hours=1500, stride=20, seed=1)
    val = make_windows(households=8, hours=1000, stride=24, seed=2)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(LoadForecaster(), batches(train, RandomSampler, 48), batches(val, SequentialSampler, 128))


if __name__ == "__main__":
    main()
