"""The step of a GAN's discriminator goes back through the generator, too, whose gradients it then throws away.
---
expect:
- PD323
half: tune
fix:
  'fake_score = self.discriminator(fake)': 'fake_score = self.discriminator(fake.detach())'
  'self.manual_backward(d_loss, retain_graph=True)  # costs time': 'self.manual_backward(d_loss)'
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LATENT = 32


def make_blobs(n):
    generator = torch.Generator().manual_seed(0)
    centre = torch.rand(n, 2, 1, 1, generator=generator) * 12 + 6
    axis = torch.arange(24.0)
    distance = (axis[None, :, None] - centre[:, 0]) ** 2 + (axis[None, None, :] - centre[:, 1]) ** 2
    return (torch.exp(-distance / 12) * 2 - 1).unsqueeze(1)


class BlobGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(LATENT, 64 * 6 * 6),
            nn.Unflatten(1, (64, 6, 6)),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(64, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(48, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 1, 3, padding=1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * 6 * 6, 1),
        )

    def training_step(self, batch, batch_idx):
        (real,) = batch
        g_opt, d_opt = self.optimizers()
        fake = self.generator(torch.randn(len(real), LATENT))

        real_score = self.discriminator(real)
        fake_score = self.discriminator(fake)
        d_loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
        d_opt.zero_grad()
        self.manual_backward(d_loss, retain_graph=True)  # costs time
        d_opt.step()

        g_loss = F.softplus(-self.discriminator(fake)).mean()
        g_opt.zero_grad()
        self.manual_backward(g_loss)
        g_opt.step()
        self.log_dict({"g_loss": g_loss, "d_loss": d_loss})

    def configure_optimizers(self):
        options = {"lr": 2e-4, "betas": (0.5, 0.999), "fused": True}
        g_opt = torch.optim.Adam(self.generator.parameters(), **options)
        return g_opt, torch.optim.Adam(self.discriminator.parameters(), **options)


L.seed_everything(1)
loader = DataLoader(TensorDataset(make_blobs(1_600)), batch_size=16, shuffle=True, drop_last=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(BlobGAN(), loader)
