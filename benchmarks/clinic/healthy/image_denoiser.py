"""Denoising of small grey images with a convolutional encoder-decoder (channels-last, fused AdamW).
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_shapes(n=1920, size=32):
    gen = torch.Generator().manual_seed(17)
    grid = torch.arange(size).float()
    cx, cy, r = (torch.rand(3, n, 1, 1, generator=gen) * torch.tensor([20.0, 20.0, 8.0]).view(3, 1, 1, 1)) + 4
    disc = ((grid[None, :, None] - cy) ** 2 + (grid[None, None, :] - cx) ** 2 < r**2).float()
    return TensorDataset(disc.unsqueeze(1))


class Denoiser(LightningModule):
    def __init__(self, width=10, sigma=0.4):
        super().__init__()
        self.sigma = sigma
        self.down = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width, 1, 2, stride=2),
        )

    def forward(self, noisy):
        return self.up(self.down(noisy))

    def training_step(self, batch, batch_idx):
        (clean,) = batch
        noisy = clean + self.sigma * torch.randn_like(clean)
        loss = F.mse_loss(self(noisy), clean)
        self.log("train_mse", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(3)
    loader = DataLoader(make_shapes(), batch_size=48, shuffle=True, drop_last=True)
    model = Denoiser().to(memory_format=torch.channels_last)
    trainer = Trainer(
        accelerator="cpu", max_epochs=14, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(model, loader)
