"""Anomaly detection in server logs: a GRU reads how often and how recently each log template occurred and
forecasts the counts of the next minute. The recency features are full of denormal numbers.
---
expect: PD319
fix:
  ? |-
    return np.exp(-age / tau)
  : |-
    decay = np.exp(-age / tau)
        return np.where(decay < 1e-12, np.float32(0), decay)
half: tune
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

TEMPLATES, MINUTES, WINDOW = 40, 4500, 32
TAUS = (0.5, 2.0, 8.0)


def make_counts(rng):
    """Counts per minute and template: busy and rare templates, with a daily rhythm."""
    rate = np.geomspace(3.0, 0.002, TEMPLATES)
    rhythm = 1 + 0.6 * np.sin(2 * np.pi * np.arange(MINUTES) / 1440)
    return rng.poisson(rate * rhythm[:, None]).astype(np.float32)


def minutes_since_last(counts):
    now = np.arange(MINUTES, dtype=np.float32)[:, None]
    seen = np.where(counts > 0, now, np.float32(-5000))
    return now - np.maximum.accumulate(seen, axis=0)


def recency(age, tau):
    return np.exp(-age / tau)


class LogWindows(Dataset):
    def __init__(self, counts):
        age = minutes_since_last(counts)
        recent = [recency(age, np.float32(tau)) for tau in TAUS]
        features = torch.from_numpy(np.concatenate([np.log1p(counts), *recent], axis=1))
        self.windows = features.unfold(0, WINDOW, 1)[:-1].transpose(1, 2)
        self.following = torch.from_numpy(counts[WINDOW:])

    def __len__(self):
        return len(self.following)

    def __getitem__(self, rows):
        return self.windows[rows], self.following[rows]


class CountForecaster(L.LightningModule):
    def __init__(self, hidden=64):
        super().__init__()
        self.encoder = nn.GRU(TEMPLATES * (1 + len(TAUS)), hidden, batch_first=True)
        self.rate = nn.Linear(hidden, TEMPLATES)
        self.loss = nn.PoissonNLLLoss(log_input=True)

    def forward(self, windows):
        _, state = self.encoder(windows)  # costs time
        return self.rate(state[-1])

    def training_step(self, batch, batch_idx):
        windows, following = batch
        loss = self.loss(self(windows), following)
        self.log("train_nll", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        windows, following = batch
        loss = self.loss(self(windows), following)
        self.log("val_nll", loss, batch_size=len(following))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


def make_loader(windows, shuffle):
    rows = RandomSampler(windows) if shuffle else range(len(windows))
    return DataLoader(windows, sampler=BatchSampler(rows, 64, drop_last=shuffle), batch_size=None)


if __name__ == "__main__":
    L.seed_everything(11)
    rng = np.random.default_rng(11)
    train, valid = LogWindows(make_counts(rng)), LogWindows(make_counts(rng))
    valid.following = valid.following[:640]
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(CountForecaster(), make_loader(train, True), make_loader(valid, False))
