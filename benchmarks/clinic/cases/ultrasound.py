"""Trains a residual network that removes speckle from ultrasound images with an SSIM loss; the Gaussian window of the
loss is applied as a full 11x11 convolution although it is separable.
---
expect: PD335
fix:
  "return F.conv2d(maps, self.window)": "return F.conv2d(F.conv2d(maps, self.taps), self.taps.mT)"
half: score
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SIZE = 72


def synthetic_scans(count, seed):
    """Smooth tissue layers with a dark cyst, and the same with multiplicative speckle."""
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 1, 6, 6, generator=gen)
    clean = F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    grid = torch.linspace(-1, 1, SIZE)
    centre = torch.rand(count, 2, 1, 1, generator=gen) - 0.5
    distance = (grid[:, None] - centre[:, :1]) ** 2 + (grid[None, :] - centre[:, 1:]) ** 2
    clean = torch.where(distance < 0.06, 0.05, 0.3 + 0.7 * clean)
    speckle = 1 + 0.4 * torch.randn(clean.shape, generator=gen)
    return (clean * speckle).clamp(0, 1.5), clean


class SSIMLoss(nn.Module):
    def __init__(self, size=11, sigma=1.5):
        super().__init__()
        offset = torch.arange(size) - size // 2
        taps = torch.exp(-(offset.float() ** 2) / (2 * sigma**2))
        taps = (taps / taps.sum())[None, None, :, None]
        self.register_buffer("taps", taps)
        self.register_buffer("window", taps @ taps.mT)

    def blur(self, maps):
        return F.conv2d(maps, self.window)  # costs time

    def forward(self, image, target, c1=0.01**2, c2=0.03**2):
        with torch.no_grad():
            mean_t, square_t = self.blur(torch.cat([target, target * target])).chunk(2)
        maps = torch.cat([image, image * image, image * target])
        mean_i, square_i, product = self.blur(maps).chunk(3)
        covariance = product - mean_i * mean_t
        variances = square_i - mean_i**2 + square_t - mean_t**2
        luminance = (2 * mean_i * mean_t + c1) / (mean_i**2 + mean_t**2 + c1)
        return 1 - (luminance * (2 * covariance + c2) / (variances + c2)).mean()


class Despeckler(lightning.LightningModule):
    def __init__(self, width=24):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 4, stride=2, padding=1), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.up = nn.Sequential(nn.Conv2d(width, 4, 3, padding=1), nn.PixelShuffle(2))
        self.loss = SSIMLoss()

    def forward(self, noisy):
        return noisy + self.up(self.body(self.down(noisy)))

    def training_step(self, batch, batch_idx):
        noisy, clean = batch
        restored = self(noisy)
        return 0.8 * self.loss(restored, clean) + 0.2 * F.l1_loss(restored, clean)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(21, verbose=False)
    scans = TensorDataset(*synthetic_scans(180, seed=2))
    loader = DataLoader(scans, batch_size=5, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Despeckler(), loader)
