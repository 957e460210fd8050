"""A small convolutional network sorts photographs of postage stamps, which lie as JPEG files in a folder.
A worker process reads, decodes and shrinks them ahead of the training, and stays alive between the epochs.
---
half: score
"""

import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

STAMPS = 640
SERIES = 6
PIXELS = 96
SIDE = 48
BATCH = 16


def photograph_stamps(folder: Path) -> list[tuple[Path, int]]:
    """Writes one JPEG per stamp: a motif whose shape depends on the series, in a random color, with a white edge."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[-1 : 1 : PIXELS * 1j, -1 : 1 : PIXELS * 1j]
    samples = []
    for number in range(STAMPS):
        series = int(rng.integers(SERIES))
        cx, cy = rng.uniform(-0.2, 0.2, size=2)
        angle = np.arctan2(y - cy, x - cx)
        outline = 0.55 + 0.2 * np.cos((series + 2) * angle + rng.uniform(0.0, 6.3))
        motif = np.hypot(x - cx, y - cy) < outline
        color, paper = rng.uniform(30, 140, size=3), rng.uniform(150, 230, size=3)
        picture = np.where(motif[..., None], color, paper) + rng.normal(0.0, 12.0, size=(PIXELS, PIXELS, 3))
        picture[(np.abs(x) > 0.9) | (np.abs(y) > 0.9)] = 250
        path = folder / f"{number:04d}.jpg"
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(path, quality=85)
        samples.append((path, series))
    return samples


class StampPhotos(Dataset):
    """Stamps as bytes; they become floats in the module, so that the worker hands over a quarter of the data."""

    def __init__(self, samples: list[tuple[Path, int]]):
        self.paths = [path for path, _ in samples]
        self.series = torch.tensor([series for _, series in samples])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        with Image.open(self.paths[index]) as photo:
            photo.draft("RGB", (SIDE, SIDE))
            pixels = np.array(photo)
        return torch.from_numpy(pixels).permute(2, 0, 1), self.series[index]


class StampSorter(L.LightningModule):
    def __init__(self, width: int = 24, lr: float = 2e-3):
        super().__init__()
        self.lr = lr
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(18 * width, SERIES),
        )

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        return self.trunk(photos.float() / 127.5 - 1.0)

    def training_step(self, batch, batch_idx):
        photos, series = batch
        return F.cross_entropy(self(photos), series)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(3)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(
            StampPhotos(photograph_stamps(Path(folder))),
            batch_size=BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=1,
            prefetch_factor=4,
            persistent_workers=True,
        )
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=6,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(StampSorter(), loader)


if __name__ == "__main__":
    main()
