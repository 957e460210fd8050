"""Trains a small U-Net that picks P arrivals in three-component seismograms; the collate function makes tensors from
lists of arrays.
---
expect: PD108
fix:
  ? |-
    torch.tensor([sample[0] for sample in samples])
  : |-
    torch.from_numpy(np.stack([sample[0] for sample in samples]))
  ? |-
    torch.tensor([sample[1] for sample in samples])
  : |-
    torch.from_numpy(np.stack([sample[1] for sample in samples]))
half: score
"""

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRACE, WINDOW = 3000, 768


class PickWindows(Dataset):
    """Random windows around the P arrival, normalized per channel, with a Gaussian target at the pick."""

    def __init__(self, traces, picks, seed):
        self.traces, self.picks = traces, picks
        self.rng = np.random.default_rng(seed)
        offsets = np.arange(-WINDOW, WINDOW, dtype=np.float32)
        self.bump = np.exp(-0.5 * (offsets / 10.0) ** 2).astype(np.float32)

    def __len__(self):
        return len(self.traces)

    def __getitem__(self, index):
        pick = self.picks[index]
        before = int(self.rng.integers(60, WINDOW - 60))
        start = min(max(pick - before, 0), TRACE - WINDOW)
        window = self.traces[index, :, start : start + WINDOW]
        window = window - window.mean(axis=1, keepdims=True)
        window /= np.abs(window).max(axis=1, keepdims=True) + 1e-6
        shift = WINDOW - (pick - start)
        return window, self.bump[shift : shift + WINDOW]


def collate_windows(samples):
    windows = torch.tensor([sample[0] for sample in samples])  # costs time
    targets = torch.tensor([sample[1] for sample in samples])  # costs time
    return windows, targets


def block(channels_in, channels_out, stride=1):
    return nn.Sequential(
        nn.Conv1d(channels_in, channels_out, 7, stride=stride, padding=3, bias=False),
        nn.BatchNorm1d(channels_out),
        nn.ReLU(),
    )


class Picker(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.enter = block(3, 12, stride=2)
        self.down = block(12, 24, stride=4)
        self.bottom = nn.Sequential(block(24, 48, stride=4), block(48, 24))
        self.merge = block(48, 12)
        self.exit = nn.Conv1d(24, 1, 7, padding=3)
        self.criterion = nn.BCEWithLogitsLoss()

    def forward(self, windows):
        fine = self.enter(windows)
        coarse = self.down(fine)
        up = nn.functional.interpolate(self.bottom(coarse), scale_factor=4)
        up = self.merge(torch.cat([coarse, up], dim=1))
        up = nn.functional.interpolate(up, scale_factor=4)
        logits = self.exit(torch.cat([fine, up], dim=1))
        return nn.functional.interpolate(logits, scale_factor=2, mode="linear").squeeze(1)

    def training_step(self, batch, batch_idx):
        windows, targets = batch
        loss = self.criterion(self(windows), targets)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def make_events(count, seed):
    rng = np.random.default_rng(seed)
    traces = rng.standard_normal((count, 3, TRACE), dtype=np.float32)
    picks = rng.integers(600, TRACE - 900, count)
    t = np.arange(600, dtype=np.float32)
    wavelet = 4.0 * np.exp(-t / 150.0) * np.sin(2 * np.pi * t / 16.0)
    for trace, pick in zip(traces, picks, strict=True):
        trace[:, pick : pick + 600] += wavelet
    return traces, picks


if __name__ == "__main__":
    lightning.seed_everything(11)
    traces, picks = make_events(4000, seed=5)
    loader = DataLoader(PickWindows(traces, picks, seed=6), batch_size=32, shuffle=True, collate_fn=collate_windows)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Picker(), loader)
