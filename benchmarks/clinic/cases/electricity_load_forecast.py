"""Trains a recurrent forecaster of the electric load of many customers. The mistake: a callback computes gradient
statistics of all parameters at every step, although the logger takes them only every 50 steps.
---
expect: PD504
fix:
  ? |2-
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
  : |2-
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            if (trainer.global_step + 1) % trainer.log_every_n_steps != 0:
                return
half: score
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAST, FUTURE = 48, 12


def make_load(customers=60, hours=700):
    gen = torch.Generator().manual_seed(2)
    t = torch.arange(hours).float()
    phase = torch.rand(customers, 2, generator=gen) * 6.28
    daily = torch.sin(t * 6.28 / 24 + phase[:, :1])
    weekly = torch.sin(t * 6.28 / 168 + phase[:, 1:])
    noise = torch.randn(customers, hours, generator=gen).cumsum(1) * 0.02
    return daily + 0.5 * weekly + noise


class LoadWindows(Dataset):
    def __init__(self, load, stride):
        self.windows = load.unfold(1, PAST + FUTURE, stride).reshape(-1, PAST + FUTURE).contiguous()

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        window = self.windows[i]
        return window[:PAST], window[PAST:]


class GradientHealth(L.Callback):
    """Logs quantiles of every parameter's gradient, to see vanishing and exploding gradients early."""

    def __init__(self, levels=(0.01, 0.5, 0.99)):
        self.levels = torch.tensor(levels)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        stats = {}
        for name, p in pl_module.named_parameters():
            if p.grad is None:
                continue
            low, median, high = torch.quantile(p.grad.flatten().abs(), self.levels)  # costs time
            stats[f"grad/{name}/low"] = low
            stats[f"grad/{name}/median"] = median
            stats[f"grad/{name}/high"] = high
        pl_module.log_dict(stats)


class LoadForecaster(L.LightningModule):
    def __init__(self, hidden=320, patch=8):
        super().__init__()
        self.patch = patch
        self.gru = nn.GRU(patch, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, FUTURE))

    def forward(self, past):
        level = past.mean(1, keepdim=True)
        _, state = self.gru((past - level).unflatten(1, (-1, self.patch)))
        return self.head(state[-1]) + level

    def training_step(self, batch, batch_idx):
        past, future = batch
        loss = nn.functional.smooth_l1_loss(self(past), future)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        past, future = batch
        self.log("val_mae", (self(past) - future).abs().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(2)
    load = make_load()
    train = DataLoader(LoadWindows(load[:, :600], stride=16), batch_size=32, shuffle=True)
    val = DataLoader(LoadWindows(load[:, 600:], stride=20), batch_size=90)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=CSVLogger(folder),
            callbacks=[GradientHealth()],
            enable_checkpointing=False,
            gradient_clip_val=1.0,
        )
        trainer.fit(LoadForecaster(), train, val)
