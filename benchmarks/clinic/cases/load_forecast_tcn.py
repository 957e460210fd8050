"""Electricity load forecasting with a dilated temporal CNN and weather covariates; the trainer runs everything in
double precision because the numpy features arrive as float64.
---
expect: PD315
half: score
fix:
  'precision="64-true"': 'precision="32-true"'
  'windows = torch.from_numpy(windows)': 'windows = torch.from_numpy(windows).float()'
  'targets = torch.from_numpy(targets)': 'targets = torch.from_numpy(targets).float()'
"""

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from numpy.lib.stride_tricks import sliding_window_view
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HISTORY, HORIZON = 72, 24


def load_series(hours=2800):
    rng = np.random.default_rng(0)
    t = np.arange(hours)
    temperature = 10 + 8 * np.sin(2 * np.pi * t / 8760) + 4 * np.sin(2 * np.pi * t / 24) + rng.normal(0, 1, hours)
    weekend = ((t // 24) % 7 >= 5).astype(float)
    load = 50 + 12 * np.sin(2 * np.pi * (t - 7) / 24) - 8 * weekend - 0.6 * temperature + rng.normal(0, 1.5, hours)
    features = np.stack([load, temperature, weekend, np.sin(2 * np.pi * t / 24), np.cos(2 * np.pi * t / 24)], axis=1)
    return (features - features.mean(0)) / features.std(0)


def make_dataset():
    series = load_series()
    windows = sliding_window_view(series[:-HORIZON], HISTORY, axis=0).transpose(0, 2, 1).copy()
    targets = sliding_window_view(series[HISTORY:, 0], HORIZON).copy()
    windows = torch.from_numpy(windows)
    targets = torch.from_numpy(targets)
    return TensorDataset(windows[: len(targets)], targets[: len(windows)])


class LoadForecaster(LightningModule):
    def __init__(self, n_features=5, hidden=48):
        super().__init__()
        self.inp = nn.Conv1d(n_features, hidden, 3, stride=2)
        self.blocks = nn.ModuleList(nn.Conv1d(hidden, hidden, 3, dilation=d, padding=d) for d in (1, 2, 4))
        self.head = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, HORIZON))

    def forward(self, history):
        h = self.inp(history.transpose(1, 2))
        for conv in self.blocks:
            h = h + F.relu(conv(h))
        return self.head(h[..., -1])

    def training_step(self, batch, batch_idx):
        history, future = batch
        loss = F.smooth_l1_loss(self(history), future)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    seed_everything(13)
    loader = DataLoader(make_dataset(), batch_size=32, shuffle=True, drop_last=True)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=6,
        precision="64-true",
        gradient_clip_val=1.0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(LoadForecaster(), loader)
