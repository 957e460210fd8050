"""Estimates temperature, gravity and metal content of stars from spectra of 2,500 pixels with wide learned filters.
The filters are applied by Fourier transforms whose length is a prime number, for which the transform is slow.
---
expect: PD335
fix:
  "size = pixels + self.filters.shape[-1] - 1": "size = next_fast_len(pixels + self.filters.shape[-1] - 1, real=True)"
  "import numpy as np": |2-
    import numpy as np
    from scipy.fft import next_fast_len
half: score
"""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PIXELS = 2500
LINES = 40


def observe(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Continuum times absorption lines whose depth depends on the three labels, with noise."""
    rng = np.random.default_rng(seed)
    wave = np.linspace(0, 1, PIXELS, dtype=np.float32)
    centers = np.sort(rng.uniform(0.02, 0.98, LINES))
    pull = rng.normal(0, 1, (3, LINES))
    labels = rng.normal(0, 1, (count, 3)).astype(np.float32)
    depth = 0.5 / (1 + np.exp(-labels @ pull))
    width = 0.001 * (1.5 + np.tanh(labels[:, 1:2]))
    flux = np.ones((count, PIXELS), dtype=np.float32)
    for line in range(LINES):
        shape = np.exp(-0.5 * ((wave - centers[line]) / width) ** 2)
        flux *= 1 - depth[:, line : line + 1] * shape
    flux += rng.normal(0, 0.02, flux.shape)
    flux *= 1 + 0.2 * labels[:, :1] * (wave - 0.5)
    return torch.from_numpy(flux.astype(np.float32)), torch.from_numpy(labels)


class WideFilter(nn.Module):
    """A learned filter per channel that is as wide as the spectrum, followed by a mix of the channels."""

    def __init__(self, channels: int, pixels: int):
        super().__init__()
        decay = torch.exp(-torch.arange(pixels) / 60.0)
        self.filters = nn.Parameter(torch.randn(channels, pixels) * decay * 0.2)
        self.skip = nn.Parameter(torch.ones(channels, 1))
        self.mix = nn.Conv1d(channels, channels, 1)

    def convolve(self, x: torch.Tensor) -> torch.Tensor:
        pixels = x.shape[-1]
        size = pixels + self.filters.shape[-1] - 1
        spectrum = torch.fft.rfft(x, n=size) * torch.fft.rfft(self.filters, n=size)  # costs time
        return torch.fft.irfft(spectrum, n=size)[..., :pixels]  # costs time

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(self.mix(self.convolve(x) + self.skip * x))


class StarLabels(L.LightningModule):
    def __init__(self, channels: int = 6, depth: int = 2):
        super().__init__()
        self.lift = nn.Conv1d(1, channels, 1)
        self.layers = nn.Sequential(*[WideFilter(channels, PIXELS) for _ in range(depth)])
        self.pool = nn.AvgPool1d(10)
        self.head = nn.Linear(channels * PIXELS // 10, 3)

    def forward(self, flux: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.lift(flux.unsqueeze(1) - 1))
        return self.head(self.pool(x).flatten(1))

    def training_step(self, batch, batch_idx):
        flux, labels = batch
        loss = nn.functional.mse_loss(self(flux), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(17)
    flux, labels = observe(960, seed=17)
    loader = DataLoader(TensorDataset(flux, labels), batch_size=12, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(StarLabels(), loader)
    print(trainer.callback_metrics["train_loss"].item())


if __name__ == "__main__":
    main()
