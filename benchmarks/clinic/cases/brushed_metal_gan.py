"""A GAN that makes images of brushed-metal surfaces for defect augmentation; the time goes into backpropagating
the discriminator loss through the generator.
---
expect: PD323
fix:
  self.disc(fake)).mean() + F.softplus(-: self.disc(fake.detach())).mean() + F.softplus(-
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

LATENT, SIDE = 48, 32


def brushed_surfaces(count):
    gen = torch.Generator().manual_seed(21)
    lines = torch.randn(count, 1, SIDE, 1, generator=gen)
    grain = 0.3 * torch.randn(count, 1, SIDE, SIDE, generator=gen)
    ramp = torch.linspace(-1, 1, SIDE).view(1, 1, 1, SIDE) * torch.randn(count, 1, 1, 1, generator=gen)
    images = 0.5 * lines + grain + 0.4 * ramp
    return torch.tanh(F.avg_pool2d(images, 3, stride=1, padding=1))


class Generator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.width = width
        self.project = nn.Linear(LATENT, width * 2 * 8 * 8)
        self.up1 = nn.Sequential(
            nn.BatchNorm2d(width * 2), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(width * 2, width, 3, padding=1)
        )
        self.up2 = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(width, width // 2, 3, padding=1)
        )
        self.out = nn.Sequential(
            nn.BatchNorm2d(width // 2), nn.ReLU(), nn.Conv2d(width // 2, 1, 3, padding=1), nn.Tanh()
        )

    def forward(self, z):
        x = self.project(z).view(-1, self.width * 2, 8, 8)
        return self.out(self.up2(self.up1(x)))


class Discriminator(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 1),
        )


class SurfaceGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.gen = Generator()
        self.disc = Discriminator()

    def training_step(self, batch, batch_idx):
        opt_g, opt_d = self.optimizers()
        (real,) = batch

        fake = self.gen(torch.randn(len(real), LATENT, device=self.device))
        d_loss = F.softplus(self.disc(fake)).mean() + F.softplus(-self.disc(real)).mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss)  # costs time
        opt_d.step()

        fake = self.gen(torch.randn(len(real), LATENT, device=self.device))
        g_loss = F.softplus(-self.disc(fake)).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.log_dict({"d_loss": d_loss.detach(), "g_loss": g_loss.detach()})

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.gen.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        opt_d = torch.optim.Adam(self.disc.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
        return opt_g, opt_d


def main():
    L.seed_everything(21)
    data = TensorDataset(brushed_surfaces(1800))
    batches = BatchSampler(RandomSampler(data), 12, drop_last=True)
    loader = DataLoader(data, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=2
    )
    trainer.fit(SurfaceGAN(), loader)
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
