"""A small dilated convolution learns to forecast animal calls from windows of recorder data, and its time goes to
re- reading whole arrays from an .npz file for every sample.
---
expect:
- PD107
- PD101
fix:
  self.archive = np.load(path): self.archive = dict(np.load(path))
half: score
"""

import os
import tempfile

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
SITES, HOURS, WINDOW = 36, 2400, 96


def write_archive(path, seed=3):
    """Hourly acoustic activity of 36 recorders, with weather, and calls counted per hour."""
    rng = np.random.default_rng(seed)
    t = np.arange(HOURS)
    daily = np.sin(2 * np.pi * t / 24)[None] + 0.3 * rng.standard_normal((SITES, HOURS))
    slow = np.cumsum(rng.standard_normal((SITES, HOURS)), 1) * 0.02
    activity = (daily + slow).astype(np.float32)
    rain = (rng.random((SITES, HOURS)) < 0.08).astype(np.float32)
    rate = np.exp(0.8 * np.roll(daily, 3, 1) - 1.2 * rain)
    calls = rng.poisson(np.clip(rate, 0, 20)).astype(np.float32)
    np.savez(path, activity=activity, rain=rain, calls=calls)


class RecorderWindows(Dataset):
    """Windows of 96 hours and the number of calls in the hour after."""

    def __init__(self, path, n, seed):
        rng = np.random.default_rng(seed)
        self.site = rng.integers(0, SITES, n).tolist()
        self.start = rng.integers(0, HOURS - WINDOW - 1, n).tolist()
        self.archive = np.load(path)

    def __len__(self):
        return len(self.site)

    def __getitem__(self, i):
        s, a = self.site[i], self.start[i]
        b = a + WINDOW
        x = np.stack([self.archive[k][s, a:b] for k in ("activity", "rain", "calls")])  # costs time
        return x, self.archive["calls"][s, b]


class CallForecast(L.LightningModule):
    def __init__(self, width=80):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, width, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 3, padding=2, dilation=2),
            nn.GELU(),
            nn.Conv1d(width, width, 3, padding=4, dilation=4),
            nn.GELU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(4 * width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, _):
        x, y = batch
        loss = F.poisson_nll_loss(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(11)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "recorders.npz")
        write_archive(path)
        data = RecorderWindows(path, 2400, seed=5)
        loader = DataLoader(data, batch_size=24, shuffle=True, drop_last=True)
        trainer = L.Trainer(
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            max_epochs=3,
        )
        trainer.fit(CallForecast(), loader)
        print("loss", float(trainer.callback_metrics["loss"]))


if __name__ == "__main__":
    main()
