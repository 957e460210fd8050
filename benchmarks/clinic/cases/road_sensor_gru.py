"""Traffic-flow forecasting for road sensors with a GRU; the time goes into re-reading the whole array from the
.npz archive for every window.
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
from torch import nn
from torch.utils.data import DataLoader, Dataset

HISTORY, HORIZON, SENSORS, HOURS = 24, 12, 60, 3200


def write_archive(path):
    rng = np.random.default_rng(5)
    hours = np.arange(HOURS)[:, None]
    phase = rng.uniform(0, 2 * np.pi, (1, SENSORS))
    daily = np.sin(2 * np.pi * hours / 24 + phase)
    weekly = 0.4 * np.sin(2 * np.pi * hours / 168 + 0.5 * phase)
    noise = rng.normal(0, 0.15, (HOURS, SENSORS))
    flow = (daily + weekly + noise).astype(np.float32)
    clock = np.stack([np.sin(2 * np.pi * np.arange(HOURS) / 24), np.cos(2 * np.pi * np.arange(HOURS) / 24)], 1)
    np.savez(path, flow=flow, clock=clock.astype(np.float32))


class FlowWindows(Dataset):
    """Sliding windows over the network-wide flow matrix."""

    def __init__(self, path, first, last):
        self.archive = np.load(path)
        self.first = first
        self.count = last - first - HISTORY - HORIZON

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        start = self.first + i
        window = self.archive["flow"][start : start + HISTORY + HORIZON]  # costs time
        clock = self.archive["clock"][start : start + HISTORY]
        past = np.concatenate([window[:HISTORY], clock], axis=1)
        return torch.from_numpy(past), torch.from_numpy(window[HISTORY:])


class FlowForecaster(L.LightningModule):
    def __init__(self, width=192):
        super().__init__()
        self.encoder = nn.GRU(SENSORS + 2, width, batch_first=True)
        self.decoder = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, HORIZON * SENSORS))
        self.criterion = nn.SmoothL1Loss()

    def forward(self, past):
        _, state = self.encoder(past)
        return self.decoder(state[-1]).view(-1, HORIZON, SENSORS)

    def training_step(self, batch, batch_idx):
        past, future = batch
        loss = self.criterion(self(past), future)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        past, future = batch
        self.log("val_mae", (self(past) - future).abs().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(5)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "network.npz")
        write_archive(path)
        train = DataLoader(FlowWindows(path, 0, 2800), batch_size=32, shuffle=True, drop_last=True)
        val = DataLoader(FlowWindows(path, 2800, HOURS), batch_size=64)
        trainer = L.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=3
        )
        trainer.fit(FlowForecaster(), train, val)
        print("val_mae", float(trainer.callback_metrics["val_mae"]))


if __name__ == "__main__":
    main()
