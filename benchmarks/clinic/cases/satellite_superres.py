"""Trains a small network that doubles the resolution of satellite-like patches with a pixel and a perceptual loss.
The fixed feature network of the perceptual loss is in eval mode but its weights still require gradients, so every step
builds a graph for the target's features too and computes weight gradients of the feature network that nobody uses.
---
expect: PD323
fix:
  ? "        self.features = features.eval()"
  : "        self.features = features.eval().requires_grad_(False)"
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_patches(count, size=32, seed=0):
    gen = torch.Generator().manual_seed(seed)
    image = torch.zeros(count, 3, size, size)
    for cells, weight in ((4, 0.5), (12, 0.3), (32, 0.2)):
        noise = torch.rand(count, 3, cells, cells, generator=gen)
        image += weight * F.interpolate(noise, size=(size, size), mode="bilinear", align_corners=False)
    rows, half = torch.arange(size), count // 2
    start = torch.randint(0, size - 4, (half, 1), generator=gen)
    road = ((rows >= start) & (rows < start + 3)).float()
    image[:half] = image[:half] * (1 - road)[:, None, :, None] + 0.9 * road[:, None, :, None]
    return image


def feature_network():
    """Makes a network like the first blocks of a pretrained classifier."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
    )


class PerceptualLoss(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features.eval()

    def forward(self, output, target):
        return F.mse_loss(self.features(output), self.features(target))  # costs time


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x):
        return x + 0.1 * self.body(x)


class Upscaler(nn.Module):
    def __init__(self, width=32, blocks=2):
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.tail = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, small):
        base = F.interpolate(small, scale_factor=2.0, mode="bilinear", align_corners=False)
        return base + self.tail(self.body(self.head(small)))


class SuperRes(L.LightningModule):
    def __init__(self, perceptual_weight=0.1):
        super().__init__()
        self.net = Upscaler()
        self.perceptual = PerceptualLoss(feature_network())
        self.perceptual_weight = perceptual_weight
        self.to(memory_format=torch.channels_last)

    def training_step(self, batch, batch_idx):
        (sharp,) = batch
        output = self.net(F.avg_pool2d(sharp, 2))
        pixel = F.l1_loss(output, sharp)
        loss = pixel + self.perceptual_weight * self.perceptual(output, sharp)
        self.log("pixel_loss", pixel)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=2e-4, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    loader = DataLoader(TensorDataset(make_patches(400)), batch_size=8, shuffle=True, drop_last=True)
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(SuperRes(), loader)
