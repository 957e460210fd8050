"""Both data loaders start their worker processes again in each of many short epochs.
---
expect:
- PD104
- PD103
half: tune
cores: 2
own_process: true
fix:
  '"num_workers": 2': '"num_workers": 2, "persistent_workers": True'
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

HISTORY = 128
HORIZON = 16

torch.set_num_threads(1)  # the workers need the other core


def make_load_curve(n_hours):
    rng = np.random.default_rng(0)
    hours = np.arange(n_hours)
    daily = np.sin(2 * np.pi * hours / 24) + 0.3 * np.sin(2 * np.pi * hours / 168)
    return (daily + rng.normal(0, 0.2, n_hours).cumsum() * 0.01 + rng.normal(0, 0.1, n_hours)).astype(np.float32)


class Windows(Dataset):
    """Windows of history, normalized and with the spectrum and the calendar as further channels."""

    def __init__(self, curve, starts):
        self.curve = curve
        self.starts = starts

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        start = self.starts[index]
        window = self.curve[start : start + HISTORY + HORIZON]
        past = window[:HISTORY]
        mean, std = past.mean(), past.std() + 1e-6
        window = (window - mean) / std
        smooth = np.fft.irfft(np.fft.rfft(window[:HISTORY])[:8], HISTORY)
        hours = np.arange(start, start + HISTORY)
        channels = [window[:HISTORY], smooth, np.sin(2 * np.pi * hours / 24), np.cos(2 * np.pi * hours / 24)]
        return np.stack(channels).astype(np.float32), window[HISTORY:]


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers, width = [], 4
        for dilation in (1, 2, 4, 8):
            layers += [nn.Conv1d(width, 32, 3, padding=dilation, dilation=dilation), nn.ReLU()]
            width = 32
        self.net = nn.Sequential(*layers)
        self.head = nn.Linear(32, HORIZON)

    def forward(self, channels):
        return self.head(self.net(channels).mean(dim=2))

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
curve = make_load_curve(20_000)
starts = np.random.default_rng(1).permutation(len(curve) - HISTORY - HORIZON)[:512]
options = {"batch_size": 32, "num_workers": 2}
train_loader = DataLoader(Windows(curve, starts[:384]), shuffle=True, **options)
val_loader = DataLoader(Windows(curve, starts[384:]), **options)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=40,
    num_sanity_val_steps=0,
    log_every_n_steps=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Forecaster(), train_loader, val_loader)
