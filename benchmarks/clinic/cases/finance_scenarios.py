"""A convolutional GAN learns daily returns of several assets; the discriminator's loss is also propagated through the
generator.
---
expect: PD323
fix:
  "fake_score = self.discriminator(fake)": "fake_score = self.discriminator(fake.detach())"
half: tune
"""

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

ASSETS = 6
DAYS = 128
LATENT = 32


def make_returns(n, seed):
    """Correlated returns with volatility clusters, one row per window of DAYS days."""
    g = torch.Generator().manual_seed(seed)
    log_vol = torch.zeros(n, DAYS)
    shocks = 0.25 * torch.randn(n, DAYS, generator=g)
    for day in range(1, DAYS):
        log_vol[:, day] = 0.95 * log_vol[:, day - 1] + shocks[:, day]
    market = torch.randn(n, 1, DAYS, generator=g)
    own = torch.randn(n, ASSETS, DAYS, generator=g)
    beta = torch.linspace(0.4, 1.2, ASSETS)[:, None]
    return (beta * market + 0.6 * own) * log_vol.exp()[:, None] * 0.5


class Generator(nn.Module):
    """Grows a noise vector to a return path by four upsampling stages."""

    def __init__(self, width=64):
        super().__init__()
        self.width = width
        self.start = nn.Linear(LATENT, 2 * width * 8)
        stages, channels = [], 2 * width
        for _ in range(4):
            stages += [nn.Upsample(scale_factor=2), nn.Conv1d(channels, width, 5, padding=2), nn.LeakyReLU(0.2)]
            channels = width
        self.stages = nn.Sequential(*stages, nn.Conv1d(width, ASSETS, 5, padding=2))

    def forward(self, noise):
        return self.stages(self.start(noise).view(-1, 2 * self.width, 8))


class Discriminator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(ASSETS, width, 5, stride=2, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv1d(2 * width, 2 * width, 5, stride=2, padding=2),
            nn.LeakyReLU(0.2),
        )
        self.score = nn.Linear(2 * width * DAYS // 8, 1)

    def forward(self, paths):
        return self.score(self.features(paths).flatten(1)).squeeze(1)


class ScenarioGAN(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = Generator()
        self.discriminator = Discriminator()

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        noise = torch.randn(len(real), LATENT)
        fake = self.generator(noise)

        # discriminator: hinge loss on real and generated paths
        fake_score = self.discriminator(fake)  # costs time
        real_score = self.discriminator(real)
        loss_d = F.relu(1 - real_score).mean() + F.relu(1 + fake_score).mean()
        opt_d.zero_grad()
        self.manual_backward(loss_d)  # costs time
        opt_d.step()

        # generator: one update after every second update of the discriminator, on fresh noise
        if batch_idx % 2 == 1:
            self.discriminator.requires_grad_(False)
            loss_g = -self.discriminator(self.generator(torch.randn(len(real), LATENT))).mean()
            opt_g.zero_grad()
            self.manual_backward(loss_g)
            opt_g.step()
            self.discriminator.requires_grad_(True)

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.9), fused=True)
        return opt_g, opt_d


def main():
    lightning.seed_everything(5)
    windows = TensorDataset(make_returns(5_120, seed=1))
    loader = DataLoader(windows, sampler=BatchSampler(RandomSampler(windows), 64, drop_last=True), batch_size=None)
    model = ScenarioGAN()
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    with torch.no_grad():
        paths = model.generator(torch.randn(500, LATENT))
    print(f"volatility: real {windows.tensors[0].std():.3f}, generated {paths.std():.3f}")


if __name__ == "__main__":
    main()
