"""A convolutional variational autoencoder learns galaxy stamps, and its time goes to convolutions that run without
oneDNN.
---
expect: PD338
fix:
  torch.backends.mkldnn.enabled = False: torch.backends.mkldnn.enabled = True
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.set_num_threads(1)
torch.backends.mkldnn.enabled = False
SIDE, LATENT = 32, 16


def make_galaxies(n, seed=14):
    """Noisy stamps of inclined galaxies with an exponential disc and a bulge."""
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, SIDE)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    angle = torch.rand(n, 1, 1, generator=g) * torch.pi
    ratio = 0.3 + 0.7 * torch.rand(n, 1, 1, generator=g)
    scale = 0.1 + 0.3 * torch.rand(n, 1, 1, generator=g)
    u = xx * angle.cos() + yy * angle.sin()
    v = (yy * angle.cos() - xx * angle.sin()) / ratio
    radius = (u.square() + v.square()).sqrt()
    disc = torch.exp(-radius / scale)
    bulge = torch.rand(n, 1, 1, generator=g) * torch.exp(-(xx.square() + yy.square()) / 0.01)
    image = disc + bulge + 0.05 * torch.randn(n, SIDE, SIDE, generator=g)
    return TensorDataset(image[:, None])


class GalaxyVAE(L.LightningModule):
    def __init__(self, c=20):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, c, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(c, c, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(c, 2 * c, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * c * 64, 2 * LATENT),
        )
        self.expand = nn.Linear(LATENT, 2 * c * 64)
        self.decode = nn.Sequential(
            nn.Conv2d(2 * c, 2 * c, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * c, c, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(c, 1, 3, padding=1),
        )

    def forward(self, x):
        mean, logvar = self.encode(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        h = self.expand(z).view(len(x), -1, 8, 8)
        return self.decode(h), mean, logvar

    def training_step(self, batch, _):
        (x,) = batch
        image, mean, logvar = self(x)
        fit = F.mse_loss(image, x)
        kl = -0.5 * (1 + logvar - mean.square() - logvar.exp()).mean()
        loss = fit + 1e-3 * kl
        self.log_dict({"loss": loss, "fit": fit, "kl": kl})
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(71)
    galaxies = make_galaxies(2560)
    batches = BatchSampler(RandomSampler(galaxies), 32, drop_last=True)
    loader = DataLoader(galaxies, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=4,
    )
    trainer.fit(GalaxyVAE(), loader)
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
