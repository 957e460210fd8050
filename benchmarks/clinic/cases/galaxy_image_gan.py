"""A convolutional GAN with hinge loss learns to draw small galaxy stamps, with four critic updates per generator
update. The critic's update keeps the generated images attached to the generator, so that its backward pass runs
through the whole generator for gradients that are thrown away.
---
expect: PD323
fix:
  ? |2-
            fake = self.generator(self.noise(len(real)))
            scores = self.critic(torch.cat([real, fake]))
  : |2-
            with torch.no_grad():
                fake = self.generator(self.noise(len(real)))
            scores = self.critic(torch.cat([real, fake]))
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE = 32
LATENT = 64


def make_galaxies(n):
    """Elliptical exponential profiles with a bulge and sky noise, one channel, in -1..1."""
    axis = torch.linspace(-1, 1, SIZE)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    angle = torch.rand(n, 1, 1) * 3.1416
    ratio = 0.3 + 0.7 * torch.rand(n, 1, 1)
    scale = 0.15 + 0.25 * torch.rand(n, 1, 1)
    cx, cy = 0.1 * torch.randn(n, 1, 1), 0.1 * torch.randn(n, 1, 1)
    u = (xx - cx) * angle.cos() + (yy - cy) * angle.sin()
    v = (-(xx - cx) * angle.sin() + (yy - cy) * angle.cos()) / ratio
    radius = (u * u + v * v).sqrt()
    light = (-radius / scale).exp() + 0.5 * (-((radius / 0.08) ** 2)).exp()
    light = light + 0.03 * torch.randn_like(light)
    return (light.clamp(0, 1.5) / 0.75 - 1).unsqueeze(1)


def up(c_in, c_out):
    return nn.Sequential(
        nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(inplace=True),
    )


def down(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 4, stride=2, padding=1), nn.LeakyReLU(0.2, inplace=True))


class GalaxyGAN(L.LightningModule):
    def __init__(self, width=24, critic_steps=4):
        super().__init__()
        self.automatic_optimization = False
        self.critic_steps = critic_steps
        self.generator = nn.Sequential(
            nn.Linear(LATENT, 4 * width * 16),
            nn.Unflatten(1, (4 * width, 4, 4)),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(inplace=True),
            up(4 * width, 2 * width),
            up(2 * width, width),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(down(1, 12), down(12, 24), down(24, 48), nn.Flatten(), nn.Linear(768, 1))

    def noise(self, n):
        return torch.randn(n, LATENT, device=self.device)

    def update_critic(self, real, optimizer):
        fake = self.generator(self.noise(len(real)))
        scores = self.critic(torch.cat([real, fake]))
        d_loss = F.relu(1 - scores[: len(real)]).mean() + F.relu(1 + scores[len(real) :]).mean()
        optimizer.zero_grad()
        self.manual_backward(d_loss)
        optimizer.step()
        return d_loss

    def update_generator(self, n, optimizer):
        self.critic.requires_grad_(False)
        g_loss = -self.critic(self.generator(self.noise(n))).mean()
        optimizer.zero_grad()
        self.manual_backward(g_loss)
        optimizer.step()
        self.critic.requires_grad_(True)
        return g_loss

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        d_loss = self.update_critic(real, opt_d)
        if (batch_idx + 1) % self.critic_steps == 0:
            g_loss = self.update_generator(len(real), opt_g)
            self.log("g_loss", g_loss.detach(), on_step=False, on_epoch=True)
        self.log("d_loss", d_loss.detach(), on_step=False, on_epoch=True)

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.99), fused=True)
        opt_d = torch.optim.Adam(self.critic.parameters(), lr=2e-5, betas=(0.5, 0.99), fused=True)
        return opt_g, opt_d


def main():
    L.seed_everything(7)
    images = make_galaxies(2048)
    loader = DataLoader(TensorDataset(images), batch_size=32, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GalaxyGAN(), loader)


if __name__ == "__main__":
    main()
