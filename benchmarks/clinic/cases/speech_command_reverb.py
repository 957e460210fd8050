"""Keyword spotting on 1 s waveforms with a log-spectrogram CNN and room-reverb augmentation; the impulse response is
applied by a time-domain convolution.
---
expect: PD107
half: score
fix:
  'wet = np.convolve(clip, rir, mode="full")[: len(clip)]  # costs time': |-
    wet = fftconvolve(clip, rir, mode="full")[: len(clip)]
  "from lightning.pytorch import LightningModule, Trainer, seed_everything": |-
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from scipy.signal import fftconvolve
"""

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE_RATE = 8000
COMMANDS = ["yes", "no", "up", "down", "left", "right", "stop", "go"]


def make_clips(n):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, len(COMMANDS), n)
    t = np.arange(SAMPLE_RATE, dtype=np.float32) / SAMPLE_RATE
    freq = 200.0 + 150.0 * labels[:, None] + rng.normal(0, 10, (n, 1))
    clips = np.sin(2 * np.pi * freq * t) * np.exp(-3 * t) + 0.05 * rng.standard_normal((n, SAMPLE_RATE))
    return clips.astype(np.float32), labels


def make_rirs(n, seconds=0.25):
    rng = np.random.default_rng(1)
    length = int(seconds * SAMPLE_RATE)
    decay = np.exp(-np.linspace(0, 7, length))
    rirs = rng.standard_normal((n, length)) * decay
    rirs[:, 0] = 1.0
    return (rirs / np.linalg.norm(rirs, axis=1, keepdims=True)).astype(np.float32)


class SpeechCommands(Dataset):
    def __init__(self, n=400, reverb_prob=0.8):
        self.clips, self.labels = make_clips(n)
        self.rirs = make_rirs(32)
        self.reverb_prob = reverb_prob

    def __len__(self):
        return len(self.clips)

    def add_reverb(self, clip):
        rir = self.rirs[np.random.randint(len(self.rirs))]
        wet = np.convolve(clip, rir, mode="full")[: len(clip)]  # costs time
        return wet / (np.abs(wet).max() + 1e-6)

    def __getitem__(self, idx):
        clip = self.clips[idx]
        if np.random.rand() < self.reverb_prob:
            clip = self.add_reverb(clip)
        return torch.from_numpy(np.ascontiguousarray(clip, dtype=np.float32)), int(self.labels[idx])


class KeywordSpotter(LightningModule):
    def __init__(self, n_fft=256, hop=128):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.net = nn.Sequential(
            nn.Conv1d(n_fft // 2 + 1, 96, 5, padding=2),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Conv1d(96, 96, 5, stride=2, padding=2),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(96, len(COMMANDS)),
        )

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return self.net(torch.log1p(spec.abs()))

    def training_step(self, batch, batch_idx):
        wave, label = batch
        loss = F.cross_entropy(self(wave), label)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(7)
    loader = DataLoader(SpeechCommands(), batch_size=8, shuffle=True, drop_last=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=8, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(KeywordSpotter(), loader)
