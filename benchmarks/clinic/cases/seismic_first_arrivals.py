"""A small 1-D network picks the first arrival in three-component seismograms that lie in one compressed archive.
The dataset opens the archive with a memory map, as its author believes, and takes each batch's windows out of it.
But members of an .npz are not mapped nor kept: each look-up by name inflates the whole member again.
---
expect: PD107
fix:
  'self.archive = np.load(path, mmap_mode="r")': 'self.archive = dict(np.load(path))'
half: score
"""

import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

WINDOWS = 1920
SAMPLES = 384
BINS = 48
BATCH = 32


def write_archive(path: Path) -> None:
    """Writes windows of background noise in which a wavelet arrives at a random time."""
    rng = np.random.default_rng(11)
    time = np.arange(SAMPLES, dtype=np.float32)
    arrivals = rng.integers(24, SAMPLES - 64, size=WINDOWS)
    age = time[None, :] - arrivals[:, None]
    period = rng.uniform(8.0, 16.0, size=(WINDOWS, 1)).astype(np.float32)
    wavelet = np.where(age >= 0, np.exp(-np.abs(age) / 40.0) * np.sin(2 * np.pi * age / period), 0.0)
    gains = rng.uniform(0.5, 1.5, size=(WINDOWS, 3, 1))
    traces = 400.0 * gains * wavelet[:, None, :] + rng.normal(0.0, 120.0, size=(WINDOWS, 3, SAMPLES))
    np.savez_compressed(path, counts=traces.astype(np.int16), arrivals=arrivals.astype(np.int64))


class ArrivalWindows(Dataset):
    """Windows of digitizer counts and the bin in which the first arrival falls."""

    def __init__(self, path: Path):
        self.archive = np.load(path, mmap_mode="r")
        self.bins = torch.from_numpy(self.archive["arrivals"]) * BINS // SAMPLES

    def __len__(self) -> int:
        return len(self.bins)

    def __getitems__(self, indices: list[int]):
        counts = self.archive["counts"][indices]  # costs time
        traces = torch.from_numpy(counts).float()
        return traces / 200.0, self.bins[indices]


def as_is(batch):
    return batch


class ArrivalPicker(L.LightningModule):
    def __init__(self, width: int = 32, lr: float = 2e-3):
        super().__init__()
        self.lr = lr
        self.trunk = nn.Sequential(
            nn.Conv1d(3, width, 9, padding=4),
            nn.GELU(),
            nn.Conv1d(width, width, 9, stride=2, padding=4),
            nn.GELU(),
            nn.Conv1d(width, width, 9, stride=2, padding=4),
            nn.GELU(),
            nn.Conv1d(width, width, 9, stride=2, padding=4),
            nn.GELU(),
            nn.Conv1d(width, 1, 5, padding=2),
        )

    def forward(self, traces: torch.Tensor) -> torch.Tensor:
        return self.trunk(traces).squeeze(1)

    def training_step(self, batch, batch_idx):
        traces, bins = batch
        return F.cross_entropy(self(traces), bins)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(11)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "windows.npz"
        write_archive(path)
        loader = DataLoader(
            ArrivalWindows(path),
            batch_size=BATCH,
            shuffle=True,
            drop_last=True,
            collate_fn=as_is,
        )
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=4,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(ArrivalPicker(), loader)


if __name__ == "__main__":
    main()
