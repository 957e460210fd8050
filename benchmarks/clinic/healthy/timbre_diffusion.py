"""A diffusion model learns the spectral envelopes of synthetic instrument notes; the average of its weights is kept.
---
half: score
"""

import copy
import math
import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BINS = 256


def make_envelopes(n, seed):
    """Log spectra of notes: a harmonic comb below a few formants."""
    g = torch.Generator().manual_seed(seed)
    freq = torch.linspace(0, 1, BINS)
    pitch = 0.02 + 0.06 * torch.rand(n, 1, generator=g)
    envelope = -3 * freq * torch.rand(n, 1, generator=g) + 0.5 * torch.cos(2 * math.pi * freq / pitch)
    for _ in range(3):
        centre, gain = torch.rand(2, n, 1, generator=g)
        envelope = envelope + 2 * gain * torch.exp(-(((freq - centre) / 0.08) ** 2))
    return TensorDataset((envelope - envelope.mean()) / envelope.std())


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = nn.Linear(64, 2 * width)
        self.body = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x, t):
        scale, shift = self.modulate(t).chunk(2, dim=-1)
        return x + self.body(torch.addcmul(shift, self.norm(x), 1 + scale))


class Denoiser(nn.Module):
    def __init__(self, width=256, hidden=512, depth=2):
        super().__init__()
        self.register_buffer("rates", torch.exp(torch.linspace(0, math.log(500), 32)))
        self.enter = nn.Linear(BINS, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.leave = nn.Linear(width, BINS)

    def forward(self, x, t):
        angles = t[:, None] * self.rates
        t = torch.cat([angles.sin(), angles.cos()], dim=-1)
        h = self.enter(x)
        for block in self.blocks:
            h = block(h, t)
        return self.leave(h)


class TimbreDiffusion(L.LightningModule):
    def __init__(self, decay=0.995):
        super().__init__()
        self.decay = decay
        self.denoiser = Denoiser()
        self.average = copy.deepcopy(self.denoiser).requires_grad_(False)

    def training_step(self, batch, batch_idx):
        (clean,) = batch
        t = torch.rand(len(clean))
        noise = torch.randn_like(clean)
        signal, level = torch.cos(t * math.pi / 2)[:, None], torch.sin(t * math.pi / 2)[:, None]
        loss = F.mse_loss(self.denoiser(signal * clean + level * noise, t), noise)
        self.log("train_loss", loss)
        return loss

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        torch._foreach_lerp_(list(self.average.parameters()), list(self.denoiser.parameters()), 1 - self.decay)

    def configure_optimizers(self):
        return torch.optim.Adam(self.denoiser.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(10)
    dataset = make_envelopes(20_480, 0)
    train = DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), 256, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=CSVLogger(tempfile.mkdtemp()),
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(TimbreDiffusion(), train)
