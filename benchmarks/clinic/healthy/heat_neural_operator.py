"""A Fourier neural operator learns to map an initial temperature and a conductivity to the temperature some time later.
---
half: score
"""

import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

GRID = 128


def make_solutions(n, seed):
    """Periodic heat equation, solved exactly in Fourier space."""
    g = torch.Generator().manual_seed(seed)
    k = torch.arange(GRID // 2 + 1)
    amplitude = torch.exp(-0.15 * k) * GRID / 4
    start = torch.complex(torch.randn(n, len(k), generator=g), torch.randn(n, len(k), generator=g)) * amplitude
    conductivity = 0.002 + 0.03 * torch.rand(n, 1, generator=g)
    end = start * torch.exp(-conductivity * k**2)
    u0, u1 = torch.fft.irfft(start, GRID), torch.fft.irfft(end, GRID)
    place = torch.linspace(0, 1, GRID).expand(n, GRID)
    return TensorDataset(torch.stack([u0, 30 * conductivity.expand(n, GRID), place], dim=-1), u1)


def batches(dataset, size, shuffle):
    sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(sampler, size, drop_last=shuffle), batch_size=None)


class SpectralLayer(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(modes, width, width, 2) / width)
        self.local = nn.Linear(width, width)

    def forward(self, x):
        spectrum = torch.fft.rfft(x, dim=1)[:, : self.modes].transpose(0, 1)
        mixed = torch.bmm(spectrum, torch.view_as_complex(self.weight)).transpose(0, 1)
        return F.gelu(torch.fft.irfft(mixed, GRID, dim=1) + self.local(x))


class HeatOperator(L.LightningModule):
    def __init__(self, width=40, modes=16, depth=3):
        super().__init__()
        self.lift = nn.Linear(3, width)
        self.layers = nn.Sequential(*[SpectralLayer(width, modes) for _ in range(depth)])
        self.project = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.project(self.layers(self.lift(x))).squeeze(-1)

    @staticmethod
    def relative_error(guess, truth):
        return (torch.linalg.vector_norm(guess - truth, dim=1) / torch.linalg.vector_norm(truth, dim=1)).mean()

    def training_step(self, batch, batch_idx):
        x, truth = batch
        loss = self.relative_error(self(x), truth)
        self.log("train_error", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, truth = batch
        self.log("val_error", self.relative_error(self(x), truth))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)]


if __name__ == "__main__":
    L.seed_everything(9)
    train = batches(make_solutions(2048, 0), 32, shuffle=True)
    val = batches(make_solutions(128, 1), 64, shuffle=False)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=CSVLogger(tempfile.mkdtemp()),
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(HeatOperator(), train, val)
