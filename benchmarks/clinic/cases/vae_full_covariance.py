"""MLP VAE on synthetic spectra with a 24-dimensional diagonal Gaussian latent; the diagonal posterior is built as a
full-covariance MultivariateNormal.
---
expect: [PD330, PD327]
half: tune
fix:
  ? "return MultivariateNormal(mu, covariance_matrix=torch.diag_embed(var))  # costs time"
  : return Independent(Normal(mu, var.sqrt()), 1)
  ? "return MultivariateNormal(zeros, covariance_matrix=torch.diag_embed(ones))  # costs time"
  : return Independent(Normal(zeros, ones), 1)
  ? from torch.distributions import MultivariateNormal, kl_divergence
  : from torch.distributions import Independent, Normal, kl_divergence
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

BINS = 256


def make_spectra(n=6400, peaks=5):
    gen = torch.Generator().manual_seed(0)
    axis = torch.linspace(0, 1, BINS)
    spectra = torch.zeros(n, BINS)
    for _ in range(peaks):
        center = torch.rand(n, 1, generator=gen)
        width = 0.01 + 0.04 * torch.rand(n, 1, generator=gen)
        height = torch.rand(n, 1, generator=gen)
        spectra += height * torch.exp(-0.5 * ((axis - center) / width) ** 2)
    return spectra + 0.01 * torch.randn(n, BINS, generator=gen)


class SpectrumVAE(LightningModule):
    def __init__(self, latent=24, hidden=320, beta=0.05):
        super().__init__()
        self.beta = beta
        self.encoder = nn.Sequential(
            nn.Linear(BINS, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latent)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, BINS)
        )

    def posterior(self, x):
        mu, raw = self.encoder(x).chunk(2, dim=-1)
        var = F.softplus(raw) + 1e-4
        return MultivariateNormal(mu, covariance_matrix=torch.diag_embed(var))  # costs time

    def prior(self, mu):
        zeros, ones = torch.zeros_like(mu), torch.ones_like(mu)
        return MultivariateNormal(zeros, covariance_matrix=torch.diag_embed(ones))  # costs time

    def training_step(self, batch, batch_idx):
        (x,) = batch
        q = self.posterior(x)
        z = q.rsample()
        recon = F.mse_loss(self.decoder(z), x, reduction="none").sum(-1).mean()
        kl = kl_divergence(q, self.prior(q.mean)).mean()
        loss = recon + self.beta * kl
        self.log_dict({"recon": recon, "kl": kl})
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(11)
    loader = DataLoader(TensorDataset(make_spectra()), batch_size=64, shuffle=True, drop_last=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=7, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(SpectrumVAE(), loader)
