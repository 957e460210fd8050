"""Denoising diffusion (DDPM) on small synthetic glyph images with a U-Net of residual blocks.
The gradient norm of every single parameter is computed and logged before each optimizer step.
---
expect: [PD502, PD504, PD507]
fix:
  ? "self.log_dict(grad_norm(self, norm_type=2))  # costs time"
  : |-
    if self.global_step % 50 == 0:
                self.log_dict(grad_norm(self, norm_type=2))
half: score
"""

import math

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

T = 400


def make_glyphs(n, size=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    image = torch.zeros(n, size, size)
    for _ in range(3):
        a, b, c = (torch.rand(3, n, 1, 1, generator=g) - 0.5) * 3
        stroke = torch.exp(-((a * xx + b * yy + c * xx * yy - 0.3 * c) ** 2) * 30)
        image = torch.maximum(image, stroke)
    return (image * 2 - 1)[:, None]


def time_embedding(t, dim):
    freq = torch.exp(-math.log(10_000) * torch.arange(dim // 2) / (dim // 2))
    angle = t[:, None].float() * freq
    return torch.cat([angle.sin(), angle.cos()], 1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.norm2, self.conv2 = nn.GroupNorm(4, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(emb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, width=16, emb=64):
        super().__init__()
        w1, w2, w3 = width, 2 * width, 3 * width
        self.dim = width
        self.time = nn.Sequential(nn.Linear(width, emb), nn.SiLU(), nn.Linear(emb, emb), nn.SiLU())
        self.stem = nn.Conv2d(1, w1, 3, padding=1)
        self.down1 = nn.ModuleList([ResBlock(w1, w1, emb), ResBlock(w1, w1, emb)])
        self.down2 = nn.ModuleList([ResBlock(w1, w2, emb), ResBlock(w2, w2, emb)])
        self.mid = nn.ModuleList([ResBlock(w2, w3, emb), ResBlock(w3, w3, emb)])
        self.up2 = nn.ModuleList([ResBlock(w3 + w2, w2, emb), ResBlock(w2, w2, emb)])
        self.up1 = nn.ModuleList([ResBlock(w2 + w1, w1, emb), ResBlock(w1, w1, emb)])
        self.out = nn.Sequential(nn.GroupNorm(4, w1), nn.SiLU(), nn.Conv2d(w1, 1, 3, padding=1))

    def run(self, blocks, x, emb):
        for block in blocks:
            x = block(x, emb)
        return x

    def forward(self, x, t):
        emb = self.time(time_embedding(t, self.dim))
        h1 = self.run(self.down1, self.stem(x), emb)
        h2 = self.run(self.down2, F.avg_pool2d(h1, 2), emb)
        h3 = self.run(self.mid, F.avg_pool2d(h2, 2), emb)
        u2 = self.run(self.up2, torch.cat([F.interpolate(h3, scale_factor=2.0), h2], 1), emb)
        u1 = self.run(self.up1, torch.cat([F.interpolate(u2, scale_factor=2.0), h1], 1), emb)
        return self.out(u1)


class DDPM(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = UNet()
        beta = torch.linspace(1e-4, 0.03, T)
        self.register_buffer("abar", torch.cumprod(1 - beta, 0))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        t = torch.randint(0, T, (x.shape[0],))
        noise = torch.randn_like(x)
        abar = self.abar[t][:, None, None, None]
        loss = F.mse_loss(self.net(abar.sqrt() * x + (1 - abar).sqrt() * noise, t), noise)
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log_dict(grad_norm(self, norm_type=2))  # costs time

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(2)
    data = TensorDataset(make_glyphs(2880))
    loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 16, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        gradient_clip_val=1.0,
        logger=CSVLogger("logs"),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DDPM(), loader)
