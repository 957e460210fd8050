"""Trains a generative adversarial network that draws one-dimensional emission spectra.
---
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BINS, LATENT = 384, 64


def make_spectra(n, lines=5):
    gen = torch.Generator().manual_seed(17)
    axis = torch.linspace(0, 1, BINS)
    spectra = torch.zeros(n, BINS)
    for k in range(lines):
        center = 0.15 + 0.15 * k + 0.02 * torch.randn(n, 1, generator=gen)
        height = torch.rand(n, 1, generator=gen)
        spectra += height * torch.exp(-((axis - center) ** 2) / 2e-4)
    return spectra + 0.02 * torch.randn(n, BINS, generator=gen)


class SpectraGAN(L.LightningModule):
    def __init__(self, width=768):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(LATENT, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, BINS)
        )
        self.critic = nn.Sequential(
            nn.Linear(BINS, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)
        )

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_c = self.optimizers()
        fake = self(torch.randn(len(real), LATENT, device=self.device))

        self.toggle_optimizer(opt_c)
        scores_real, scores_fake = self.critic(real), self.critic(fake.detach())
        critic_loss = F.softplus(-scores_real).mean() + F.softplus(scores_fake).mean()
        opt_c.zero_grad()
        self.manual_backward(critic_loss)
        opt_c.step()
        self.untoggle_optimizer(opt_c)

        self.critic.requires_grad_(False)
        generator_loss = F.softplus(-self.critic(fake)).mean()
        opt_g.zero_grad()
        self.manual_backward(generator_loss)
        opt_g.step()
        self.critic.requires_grad_(True)

        self.log_dict({"critic_loss": critic_loss.detach(), "generator_loss": generator_loss.detach()}, prog_bar=True)

    def validation_step(self, batch, batch_idx):
        (real,) = batch
        fake = self(torch.randn(len(real), LATENT, device=self.device))
        self.log("val_mean_gap", (fake.mean(0) - real.mean(0)).abs().mean())
        self.log("val_std_gap", (fake.std(0) - real.std(0)).abs().mean())

    def configure_optimizers(self):
        settings = {"lr": 2e-4, "betas": (0.5, 0.99), "fused": True}
        return (
            torch.optim.Adam(self.generator.parameters(), **settings),
            torch.optim.Adam(self.critic.parameters(), **settings),
        )


if __name__ == "__main__":
    L.seed_everything(17)
    spectra = make_spectra(5568)
    train = DataLoader(TensorDataset(spectra[:5184]), batch_size=192, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(spectra[5184:]), batch_size=192)
    trainer = L.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(SpectraGAN(), train, val)
