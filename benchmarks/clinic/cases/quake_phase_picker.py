"""A long-convolution network picks P and S arrivals in seismograms, and its FFT convolutions run at the length 2 *
3000 - 1 = 5999 = 7 * 857, which has a large prime factor.
---
expect: PD335
fix:
  "n = 2 * length - 1": "n = 2 * length"
half: score
"""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, STRIDE, WIDTH = 6000, 2, 32  # one minute at 100 Hz


def seismograms(count):
    gen = torch.Generator().manual_seed(5)
    time = torch.arange(SAMPLES) / 100.0
    p_time = 5 + 20 * torch.rand(count, generator=gen)
    s_time = p_time + 4 + 20 * torch.rand(count, generator=gen)
    wave = 0.3 * torch.randn(count, 3, SAMPLES, generator=gen)
    for onset, freq, axis in ((p_time, 8.0, 2), (s_time, 3.0, 0)):
        late = (time - onset[:, None]).clamp(min=0)
        wave[:, axis] += late.sqrt() * torch.exp(-late / 3) * torch.sin(2 * torch.pi * freq * late)
    grid = time[::STRIDE]
    label = torch.stack([torch.exp(-(((grid - onset[:, None]) / 0.2) ** 2)) for onset in (p_time, s_time)], dim=1)
    return TensorDataset(wave, label)


class LongConv(nn.Module):
    """Depthwise causal convolution with a learned kernel as long as the signal."""

    def __init__(self, width, length):
        super().__init__()
        decay = torch.exp(-torch.arange(length) / torch.logspace(1, 3, width)[:, None])
        self.kernel = nn.Parameter(torch.randn(width, length) * decay * 0.1)
        self.skip = nn.Parameter(torch.ones(width, 1))

    def forward(self, x):
        length = x.shape[-1]
        n = 2 * length - 1
        signal = torch.fft.rfft(x, n=n)  # costs time
        kernel = torch.fft.rfft(self.kernel, n=n)  # costs time
        return torch.fft.irfft(signal * kernel, n=n)[..., :length] + self.skip * x  # costs time


class Block(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.conv = LongConv(width, length)
        self.mix = nn.Sequential(nn.Conv1d(width, 3 * width, 1), nn.GELU(), nn.Conv1d(3 * width, width, 1))

    def forward(self, x):
        return x + self.mix(self.conv(self.norm(x)))


class PhasePicker(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(3, WIDTH, 8, stride=STRIDE, padding=3)
        self.blocks = nn.Sequential(*[Block(WIDTH, SAMPLES // STRIDE) for _ in range(2)])
        self.head = nn.Conv1d(WIDTH, 2, 1)

    def forward(self, wave):
        return self.head(self.blocks(self.stem(wave)))

    def training_step(self, batch, batch_idx):
        wave, label = batch
        return F.binary_cross_entropy_with_logits(self(wave), label)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(9, verbose=False)
    loader = DataLoader(seismograms(144), batch_size=4, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PhasePicker(), loader)
