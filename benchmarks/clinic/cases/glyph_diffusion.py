"""Trains a denoising diffusion model on small synthetic glyphs and draws a few samples at validation. The mistake: the
samples are drawn for every validation batch, although only those of the first one are kept.
---
expect: PD601
fix:
  ? |2-
            samples = self.sample(24)
            if batch_idx == 0:
  : |2-
            if batch_idx == 0:
                samples = self.sample(24)
half: score
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 200


def make_glyphs(n, size=16):
    gen = torch.Generator().manual_seed(0)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    cx, cy, angle, radius = (torch.rand(4, n, 1, 1, generator=gen) * 2 - 1).unbind(0)
    ring = torch.exp(-60 * ((xx - 0.4 * cx) ** 2 + (yy - 0.4 * cy) ** 2 - 0.25 - 0.1 * radius) ** 2)
    bar = torch.exp(-40 * (torch.cos(3 * angle) * xx + torch.sin(3 * angle) * yy) ** 2)
    return (2 * torch.maximum(ring, 0.8 * bar) - 1)[:, None]


class Block(nn.Module):
    def __init__(self, cin, cout, width):
        super().__init__()
        self.norm, self.conv1 = nn.GroupNorm(4, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.time, self.conv2 = nn.Linear(width, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm(x))) + self.time(emb)[:, :, None, None]
        return self.conv2(F.silu(h)) + self.skip(x)


class Denoiser(nn.Module):
    def __init__(self, c=12, width=64):
        super().__init__()
        self.register_buffer("freqs", torch.exp(torch.linspace(0, -math.log(1000.0), width // 2)))
        self.embed = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.stem, self.out = nn.Conv2d(1, c, 3, padding=1), nn.Conv2d(c, 1, 3, padding=1)
        self.down, self.mid, self.up = Block(c, 2 * c, width), Block(2 * c, 2 * c, width), Block(3 * c, c, width)

    def forward(self, x, t):
        phase = t[:, None].float() * self.freqs
        emb = self.embed(torch.cat([phase.sin(), phase.cos()], dim=1))
        x = self.stem(x)
        h = self.mid(self.down(F.avg_pool2d(x, 2), emb), emb)
        return self.out(self.up(torch.cat([x, F.interpolate(h, scale_factor=2)], dim=1), emb))


class GlyphDiffusion(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Denoiser()
        self.register_buffer("alpha_bar", torch.cumprod(1 - torch.linspace(1e-4, 0.05, STEPS), dim=0))
        self.gallery = []

    def denoising_loss(self, images):
        t = torch.randint(STEPS, (len(images),))
        a = self.alpha_bar[t][:, None, None, None]
        noise = torch.randn_like(images)
        return F.mse_loss(self.net(a.sqrt() * images + (1 - a).sqrt() * noise, t), noise)

    @torch.no_grad()
    def sample(self, n, stride=10):
        x = torch.randn(n, 1, 16, 16)
        for t in range(STEPS - 1, 0, -stride):
            a, prev = self.alpha_bar[t], self.alpha_bar[max(t - stride, 0)]
            eps = self.net(x, torch.full((n,), t))
            clean = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-1, 1)
            x = prev.sqrt() * clean + (1 - prev).sqrt() * eps
        return x

    def training_step(self, batch, batch_idx):
        loss = self.denoising_loss(batch[0])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.denoising_loss(batch[0]), prog_bar=True)
        samples = self.sample(24)
        if batch_idx == 0:
            self.log("sample_std", samples.std())
            self.gallery.append(samples)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    glyphs = make_glyphs(1216)
    train = DataLoader(TensorDataset(glyphs[:1024]), batch_size=32, shuffle=True)
    val = DataLoader(TensorDataset(glyphs[1024:]), batch_size=32)
    trainer = L.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(GlyphDiffusion(), train, val)
