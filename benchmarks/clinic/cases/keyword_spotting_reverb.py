"""Trains a small convolutional keyword spotter on half-second clips with random room reverberation. The mistake: the
reverberation is computed by direct convolution with long impulse responses for every clip.
---
expect: PD107
fix:
  ? "        wet = np.convolve(clip, room)[: len(clip)]  # costs time"
  : "        wet = signal.fftconvolve(clip, room)[: len(clip)]"
half: score
"""

import math

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16000
CLIP = RATE // 2


def make_clips(n, n_words, rng):
    t = np.arange(CLIP) / RATE
    labels = rng.integers(0, n_words, n)
    clips = np.empty((n, CLIP), dtype=np.float32)
    for i, word in enumerate(labels):
        start = 200 + 150 * word + rng.normal(0, 20)
        sweep = signal.chirp(t, f0=start, f1=start * (1.2 + 0.2 * (word % 3)), t1=0.5)
        clips[i] = sweep * np.exp(-4 * t) + 0.1 * rng.standard_normal(CLIP)
    return clips, labels


def make_rooms(n, taps, rng):
    decay = np.exp(-np.arange(taps)[None] / rng.uniform(200, 900, (n, 1)))
    rooms = rng.standard_normal((n, taps)) * decay
    rooms[:, 0] = 3.0
    return (rooms / np.linalg.norm(rooms, axis=1, keepdims=True)).astype(np.float32)


class KeywordClips(Dataset):
    def __init__(self, clips, labels, rooms=None):
        self.clips, self.labels, self.rooms = clips, labels, rooms

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        clip = self.clips[i]
        if self.rooms is None:
            return torch.from_numpy(clip), self.labels[i]
        room = self.rooms[np.random.randint(len(self.rooms))]
        wet = np.convolve(clip, room)[: len(clip)]  # costs time
        return torch.from_numpy(wet), self.labels[i]


def mel_bank(n_mels, n_bins):
    mel = np.linspace(0, 2595 * math.log10(1 + RATE / 2 / 700), n_mels + 2)
    hz = 700 * (10 ** (mel / 2595) - 1)
    bins = np.linspace(0, RATE / 2, n_bins)
    up = (bins[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - bins[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.tensor(np.clip(np.minimum(up, down), 0, None), dtype=torch.float32)


class KeywordSpotter(L.LightningModule):
    def __init__(self, n_words=12, n_mels=40):
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("mel", mel_bank(n_mels, 257))
        self.net = nn.Sequential(
            nn.Conv1d(n_mels, 96, 5, padding=2),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Conv1d(96, 128, 5, stride=2, padding=2),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Conv1d(128, 128, 3, padding=1),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(128, n_words),
        )

    def forward(self, waves):
        spec = torch.stft(waves, 512, 160, 400, self.window, return_complex=True).abs().square()
        return self.net(torch.log(self.mel @ spec + 1e-6))

    def training_step(self, batch, batch_idx):
        waves, labels = batch
        loss = F.cross_entropy(self(waves), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        waves, labels = batch
        self.log("val_acc", (self(waves).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    rng = np.random.default_rng(0)
    clips, labels = make_clips(860, 12, rng)
    train = KeywordClips(clips[:720], labels[:720], make_rooms(32, 3000, rng))
    val = KeywordClips(clips[720:], labels[720:])
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(KeywordSpotter(), DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=70))
