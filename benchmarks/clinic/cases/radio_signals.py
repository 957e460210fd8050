"""Trains a long-convolution network that recognizes the modulation of radio bursts; its FFT convolutions are padded to
1999 samples, a prime length, for which the transform is many times slower than for 2000.
---
expect: PD335
fix:
  "padded = 2 * length - 1": "padded = 2 * length"
half: score
"""

import math

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 1000
MODULATIONS = 6


def synthetic_bursts(count, seed):
    """Complex baseband bursts (as I and Q rows) of phase and amplitude shift keyings in noise."""
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(MODULATIONS, (count,), generator=gen)
    levels = 2 ** (1 + label % 3)
    symbol = (torch.rand(count, SAMPLES // 10, generator=gen) * levels[:, None]).floor()
    phase = torch.where(label[:, None] < 3, 2 * math.pi * symbol / levels[:, None], 0.0)
    gain = torch.where(label[:, None] < 3, 1.0, (symbol + 1) / levels[:, None])
    drift = torch.rand(count, 1, generator=gen) * 0.02 * torch.arange(SAMPLES)
    phase = phase.repeat_interleave(10, 1) + drift
    gain = gain.repeat_interleave(10, 1)
    iq = torch.stack([gain * phase.cos(), gain * phase.sin()], 1)
    return iq + 0.3 * torch.randn(iq.shape, generator=gen), label


class LongConv(nn.Module):
    """Depthwise convolution with a learned filter that is as long as the signal."""

    def __init__(self, width):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(width, SAMPLES) / math.sqrt(SAMPLES))
        rate = torch.logspace(-3, -1, width)[:, None]
        self.register_buffer("window", torch.exp(-rate * torch.arange(SAMPLES)))

    def forward(self, x):
        length = x.shape[-1]
        padded = 2 * length - 1
        spectrum = torch.fft.rfft(x, n=padded)  # costs time
        response = torch.fft.rfft(self.filter * self.window, n=padded)
        return torch.fft.irfft(spectrum * response, n=padded)[..., :length]  # costs time


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.long = LongConv(width)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Sequential(nn.Conv1d(width, 4 * width, 1), nn.ReLU(), nn.Conv1d(4 * width, width, 1))

    def forward(self, x):
        return x + self.mix(self.norm(self.long(x)))


class ModulationNet(lightning.LightningModule):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Conv1d(2, width, 7, padding=3)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, MODULATIONS)

    def forward(self, iq):
        return self.head(self.blocks(self.stem(iq)).mean(-1))

    def training_step(self, batch, batch_idx):
        iq, label = batch
        return F.cross_entropy(self(iq), label)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(3, verbose=False)
    bursts = TensorDataset(*synthetic_bursts(350, seed=1))
    loader = DataLoader(bursts, batch_size=10, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ModulationNet(), loader)
