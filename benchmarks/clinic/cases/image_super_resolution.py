"""A generator enlarges small textures by two and is trained with a pixel loss and a perceptual loss over four depths
of a frozen feature network.
Each depth is taken by its own prefix of the feature network, so that the first layers run four times for every image.
---
expect: PD328
half: tune
fix:
  "        self.slices = nn.ModuleList(nn.Sequential(*layers[:end]) for end in (4, 6, 9, 11))": |2-
            bounds = ((0, 4), (4, 6), (6, 9), (9, 11))
            self.slices = nn.ModuleList(nn.Sequential(*layers[start:end]) for start, end in bounds)
  "        return [part(x) for part in self.slices]  # costs time": |2-
            outs = []
            for part in self.slices:
                x = part(x)
                outs.append(x)
            return outs
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_textures(n, size, seed):
    g = torch.Generator().manual_seed(seed)
    ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    images = torch.zeros(n, 3, size, size)
    for _ in range(4):
        fx, fy, phase = torch.rand(3, n, 3, 1, 1, generator=g)
        images += torch.sin(1.2 * fx * xs + 1.2 * fy * ys + 6.28 * phase) / 4
    return images


def conv(c_in, c_out):
    return nn.Conv2d(c_in, c_out, 3, padding=1)


class PerceptualLoss(nn.Module):
    """L1 distance of the features of a frozen VGG-like network."""

    def __init__(self):
        super().__init__()
        layers = [
            conv(3, 24),
            nn.ReLU(),
            conv(24, 24),
            nn.ReLU(),
            conv(24, 24),
            nn.ReLU(),
            nn.AvgPool2d(2),
            conv(24, 48),
            nn.ReLU(),
            conv(48, 48),
            nn.ReLU(),
        ]
        self.slices = nn.ModuleList(nn.Sequential(*layers[:end]) for end in (4, 6, 9, 11))
        self.to(memory_format=torch.channels_last).requires_grad_(False)

    def features(self, x):
        return [part(x) for part in self.slices]  # costs time

    def forward(self, fake, real):
        with torch.no_grad():
            wanted = self.features(real)
        return sum(F.l1_loss(a, b) for a, b in zip(self.features(fake), wanted, strict=False))


class SuperResolution(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            conv(3, 32),
            nn.ReLU(),
            conv(32, 32),
            nn.ReLU(),
            conv(32, 32),
            nn.ReLU(),
            conv(32, 12),
            nn.PixelShuffle(2),
        ).to(memory_format=torch.channels_last)
        self.perceptual = PerceptualLoss()

    def forward(self, small):
        return F.interpolate(small, scale_factor=2, mode="bilinear") + self.generator(small)

    def random_crop(self, images, size):
        top, left = torch.randint(0, images.shape[-1] - size + 1, (2,)).tolist()
        return images[..., top : top + size, left : left + size].contiguous(memory_format=torch.channels_last)

    def training_step(self, batch, batch_idx):
        real = self.random_crop(batch[0], 32)
        fake = self(F.avg_pool2d(real, 2))
        loss = F.l1_loss(fake, real) + 0.1 * self.perceptual(fake, real)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        real = batch[0].contiguous(memory_format=torch.channels_last)
        self.log("val_psnr", -10 * torch.log10(F.mse_loss(self(F.avg_pool2d(real, 2)), real)), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.generator.parameters(), lr=5e-4)


if __name__ == "__main__":
    L.seed_everything(3)
    train = DataLoader(TensorDataset(make_textures(480, 48, 0)), batch_size=4, shuffle=True)
    val = DataLoader(TensorDataset(make_textures(24, 48, 1)), batch_size=12)
    trainer = L.Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False)
    trainer.fit(SuperResolution(), train, val)
