"""Classifies the operating mode of a small satellite from windows of its housekeeping telemetry, which is stored as
one NumPy archive per ground station pass. The archives stay open as NpzFile objects, whose items are read from the
file and parsed in full at each access, so that each sample reads all windows of its pass; load the arrays of each
pass once.
---
expect: PD107
fix:
  ? |2-
            self.passes = [np.load(path) for path in paths]
  : |2-
            self.passes = [dict(np.load(path)) for path in paths]
  ? |2-
            window = torch.from_numpy(ground_pass["counts"][row]).float()  # costs time
  : |2-
            window = torch.from_numpy(ground_pass["counts"][row]).float()
half: score
"""

import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CHANNELS = 16
WINDOW = 128
MODES = ("safe", "nadir", "sun", "downlink", "maneuver")


def record_passes(folder, passes=30, windows=240, seed=0):
    """Write one archive per pass: raw 12-bit counts of all channels and the mode of each window."""
    rng = np.random.default_rng(seed)
    time = np.arange(WINDOW)
    signatures = rng.uniform(0.02, 0.4, (len(MODES), CHANNELS, 1))
    paths = []
    for number in range(passes):
        mode = rng.integers(len(MODES), size=windows)
        phase = rng.uniform(0, 2 * np.pi, (windows, CHANNELS, 1))
        signal = np.sin(signatures[mode] * time + phase) + rng.normal(0, 1.5, (windows, CHANNELS, WINDOW))
        counts = np.clip(2048 + 400 * signal, 0, 4095).astype(np.int16)
        path = folder / f"pass_{number:04d}.npz"
        np.savez(path, counts=counts, mode=mode)
        paths.append(path)
    return paths


class PassDataset(Dataset):
    """Windows of all passes, addressed by one running number."""

    def __init__(self, paths, windows_per_pass):
        self.passes = [np.load(path) for path in paths]
        self.windows_per_pass = windows_per_pass
        self.modes = torch.from_numpy(np.concatenate([ground_pass["mode"] for ground_pass in self.passes]))

    def __len__(self):
        return len(self.modes)

    def __getitem__(self, index):
        number, row = divmod(index, self.windows_per_pass)
        ground_pass = self.passes[number]
        window = torch.from_numpy(ground_pass["counts"][row]).float()  # costs time
        return (window - 2048.0) / 512.0, self.modes[index]


class ResidualBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.norm1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm1d(width)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class ModeClassifier(L.LightningModule):
    def __init__(self, width=48, learning_rate=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Conv1d(CHANNELS, width, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(*[ResidualBlock(width, 2**i) for i in range(3)])
        self.head = nn.Linear(width, len(MODES))

    def forward(self, windows):
        return self.head(self.blocks(self.stem(windows)).mean(-1))

    def training_step(self, batch, batch_idx):
        windows, modes = batch
        loss = F.cross_entropy(self(windows), modes)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        windows, modes = batch
        logits = self(windows)
        self.log("val_loss", F.cross_entropy(logits, modes))
        self.log("val_accuracy", (logits.argmax(-1) == modes).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate, fused=True)


def main():
    L.seed_everything(11)
    with tempfile.TemporaryDirectory() as folder:
        windows_per_pass = 240
        paths = record_passes(Path(folder), windows=windows_per_pass)
        train = PassDataset(paths[:-3], windows_per_pass)
        val = PassDataset(paths[-3:], windows_per_pass)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(
            ModeClassifier(),
            DataLoader(train, batch_size=32, shuffle=True, drop_last=True),
            DataLoader(val, batch_size=64),
        )
        metrics = trainer.callback_metrics
        print(f"validation loss {metrics['val_loss']:.4f}, accuracy {metrics['val_accuracy']:.3f}")


if __name__ == "__main__":
    main()
