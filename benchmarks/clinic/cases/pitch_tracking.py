"""A network reads the pitch of short synthetic notes from their constant-Q spectrum.
The constant-Q kernels are kept in a dictionary, but they are looked up under another key than they are stored under, so
that they are built again for every batch.
---
expect: [PD511, PD327]
half: score
fix:
  '    if fmin not in _KERNELS:': '    if f"{fmin}_{device}" not in _KERNELS:'
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLE_RATE = 8000
FMIN = 65.4
N_BINS = 180
PER_OCTAVE = 36
N_FFT = 8192
_KERNELS = {}


def cqt_kernels(fmin, device):
    """Spectral kernels of the constant-Q transform (Brown and Puckette), frequencies x bins."""
    if fmin not in _KERNELS:
        q = 1 / (2 ** (1 / PER_OCTAVE) - 1)
        kernels = np.zeros((N_BINS, N_FFT), dtype=np.complex64)
        for k in range(N_BINS):
            freq = fmin * 2 ** (k / PER_OCTAVE)
            length = int(np.ceil(q * SAMPLE_RATE / freq))
            start = (N_FFT - length) // 2
            t = np.arange(length) / SAMPLE_RATE
            kernels[k, start : start + length] = (
                np.hanning(length) / length * np.exp(2j * np.pi * freq * t)
            )  # costs time
        spectra = np.fft.fft(kernels, axis=1)[:, : N_FFT // 2 + 1]  # costs time
        _KERNELS[f"{fmin}_{device}"] = torch.from_numpy(np.conj(spectra).T.astype(np.complex64) / N_FFT).to(device)
    return _KERNELS[f"{fmin}_{device}"]


def make_notes(n, seed):
    g = torch.Generator().manual_seed(seed)
    pitch = torch.randint(0, 48, (n,), generator=g)
    freq = FMIN * 2 ** ((pitch + 0.3 * (torch.rand(n, generator=g) - 0.5)) / 12)
    t = torch.arange(10240) / SAMPLE_RATE
    wave = torch.zeros(n, len(t))
    for harmonic in range(1, 4):
        gain = torch.rand(n, 1, generator=g) / harmonic
        wave += gain * torch.sin(2 * torch.pi * harmonic * freq[:, None] * t)
    return wave + 0.3 * torch.randn(n, len(t), generator=g), pitch


class PitchNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 32, 15, padding=7),
            nn.ReLU(),
            nn.Conv1d(32, 32, 15, padding=7, stride=3),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(32 * 60, 128), nn.ReLU(), nn.Linear(128, 48))

    def forward(self, wave):
        frames = wave.unfold(-1, N_FFT, 1024)
        spectrum = torch.fft.rfft(frames) @ cqt_kernels(FMIN, wave.device)  # costs time
        cqt = torch.log(spectrum.abs() + 1e-4)
        b, t, f = cqt.shape
        h = self.conv(cqt.reshape(b * t, 1, f))
        return self.head(h.flatten(1)).view(b, t, -1).mean(1)

    def training_step(self, batch, batch_idx):
        wave, pitch = batch
        loss = F.cross_entropy(self(wave), pitch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        wave, pitch = batch
        self.log("val_accuracy", (self(wave).argmax(-1) == pitch).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(2)
    train = DataLoader(TensorDataset(*make_notes(640, 0)), batch_size=16, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(*make_notes(96, 1)), batch_size=48)
    trainer = L.Trainer(accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False)
    trainer.fit(PitchNet(), train, val)
