"""Trains a residual network that restores blurred microscopy images; the augmentation blurs each crop with a large
point spread function by direct summation.
---
expect: [PD107, PD101]
fix:
  "from scipy.signal import convolve2d": "from scipy.signal import fftconvolve"
  'convolve2d(sharp, psf, mode="same")': 'fftconvolve(sharp, psf, mode="same")'
half: score
"""

import lightning
import numpy as np
import torch
from scipy.signal import convolve2d
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CROP, PSF, LEVELS = 64, 27, 12


def make_slides(number=24, size=256, seed=9):
    """Images of cells: smooth bright discs on a dark ground."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size].astype(np.float32)
    slides = np.zeros((number, size, size), dtype=np.float32)
    for slide in slides:
        for cy, cx, radius, light in zip(
            *rng.uniform(0, size, (2, 40)), rng.uniform(4, 14, 40), rng.uniform(0.3, 1, 40), strict=True
        ):
            slide += light / (1 + np.exp(np.hypot(y - np.float32(cy), x - np.float32(cx)) - np.float32(radius)))
    return slides


def point_spreads():
    """Rings of growing size, one for each step away from the focus."""
    y, x = np.mgrid[-(PSF // 2) : PSF // 2 + 1, -(PSF // 2) : PSF // 2 + 1]
    radius = np.hypot(y, x)
    psfs = [np.exp(-0.5 * ((radius - 0.8 * level) / (1 + 0.15 * level)) ** 2) for level in range(LEVELS)]
    return [(psf / psf.sum()).astype(np.float32) for psf in psfs]


class Micrographs(Dataset):
    """Random crops, each put out of focus by a random step, with the noise of the camera."""

    def __init__(self, slides, length, seed=0):
        self.slides, self.length, self.psfs = slides, length, point_spreads()
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        slide = self.slides[index % len(self.slides)]
        top, left = self.rng.integers(0, slide.shape[0] - CROP, 2)
        sharp = slide[top : top + CROP, left : left + CROP]
        psf = self.psfs[self.rng.integers(LEVELS)]
        blurred = convolve2d(sharp, psf, mode="same")  # costs time
        blurred = blurred + 0.01 * self.rng.standard_normal(blurred.shape, dtype=np.float32)
        return blurred[None], sharp[None]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x):
        return x + self.body(x)


class Restorer(lightning.LightningModule):
    def __init__(self, width=24, blocks=2):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            *(Block(width) for _ in range(blocks)),
            nn.ReLU(),
            nn.Conv2d(width, 4, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, blurred):
        return blurred + self.body(blurred)

    def training_step(self, batch, batch_idx):
        blurred, sharp = batch
        return F.l1_loss(self(blurred), sharp)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(9)
    loader = DataLoader(Micrographs(make_slides(), length=500), batch_size=8, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Restorer(), loader)


if __name__ == "__main__":
    main()
