"""A keyword spotter computes its log-mel features on the fly and builds the same mel filterbank for each recording.
---
expect:
- PD107
also:
  PD101: workers make them meanwhile
half: tune
fix:
  'self.recordings = recordings': 'self.recordings, self.bank = recordings, mel_filterbank(RATE, N_FFT, N_MELS)'
  'bank = mel_filterbank(RATE, N_FFT, N_MELS)  # costs time': 'bank = self.bank'
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 8_000
N_FFT = 256
HOP = 128
N_MELS = 64
N_WORDS = 10


def mel_filterbank(rate, n_fft, n_mels):
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, n_mels + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(n_fft, 1 / rate)
    bank = np.zeros((n_mels, len(bins)), np.float32)
    for m in range(n_mels):
        rising = (bins - edges[m]) / (edges[m + 1] - edges[m])  # costs time
        falling = (edges[m + 2] - bins) / (edges[m + 2] - edges[m + 1])  # costs time
        bank[m] = np.maximum(0, np.minimum(rising, falling))  # costs time
    return bank


def make_recordings(n, length=4_000):
    rng = np.random.default_rng(0)
    words = rng.integers(0, N_WORDS, n)
    time = np.arange(length) / RATE
    pitch = 200 + 300 * words[:, None] + rng.normal(0, 20, (n, 1))
    waves = np.sin(2 * np.pi * pitch * time) + rng.normal(0, 0.5, (n, length))
    return waves.astype(np.float32), words


class Keywords(Dataset):
    def __init__(self, recordings, words):
        self.recordings = recordings
        self.words = words
        self.window = np.hanning(N_FFT).astype(np.float32)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        wave = self.recordings[index]
        frames = np.lib.stride_tricks.sliding_window_view(wave, N_FFT)[::HOP] * self.window
        power = np.abs(np.fft.rfft(frames)) ** 2
        bank = mel_filterbank(RATE, N_FFT, N_MELS)  # costs time
        features = np.log(power.astype(np.float32) @ bank.T + 1e-6).T
        return torch.from_numpy(features[None]), int(self.words[index])


class KeywordSpotter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(24, N_WORDS),
        )

    def training_step(self, batch, batch_idx):
        features, words = batch
        loss = F.cross_entropy(self.net(features), words)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


L.seed_everything(1)
loader = DataLoader(Keywords(*make_recordings(1_600)), batch_size=32, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(KeywordSpotter(), loader)
