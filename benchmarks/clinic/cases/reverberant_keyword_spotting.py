"""A small network on log-mel features spots keywords in half-second clips, which are augmented with random room reverb.
The reverb convolves the waveforms with an impulse response of 800 taps directly in the time domain instead of by FFT.
---
expect: [PD504, PD335]
fix:
  ? |2-
            wave = F.conv1d(F.pad(wave[:, None], (taps - 1, 0)), response.flip(0)[None, None])[:, 0]  # costs time
  : |2-
            size = 2 * SAMPLES
            spectrum = torch.fft.rfft(wave, size) * torch.fft.rfft(response, size)
            wave = torch.fft.irfft(spectrum, size)[:, :SAMPLES]
half: tune
"""

import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

RATE = 16000
SAMPLES = 8000
NUM_WORDS = 10


def record_words(count, seed):
    gen = torch.Generator().manual_seed(seed)
    t = torch.arange(SAMPLES) / RATE
    label = torch.randint(0, NUM_WORDS, (count,), generator=gen)
    pitch = (250 + 180 * label[:, None]) * (1 + 0.05 * torch.randn(count, 1, generator=gen))
    glide = 400 * torch.where(label % 2 == 0, 1.0, -1.0)[:, None]
    wave = torch.sin(2 * math.pi * (pitch * t + glide * t * t)) * torch.exp(-6 * t)
    return TensorDataset(wave + 0.05 * torch.randn(count, SAMPLES, generator=gen), label)


def mel_filters(bins, n_mels=40):
    def to_mel(hz):
        return 2595 * math.log10(1 + hz / 700)

    edges = 700 * (10 ** (torch.linspace(to_mel(60), to_mel(RATE / 2), n_mels + 2) / 2595) - 1)
    freqs = torch.linspace(0, RATE / 2, bins)[:, None]
    rising = (freqs - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - freqs) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0)


class KeywordSpotter(L.LightningModule):
    def __init__(self, width=144):
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.register_buffer("mel", mel_filters(257))
        self.convs = nn.Sequential(
            nn.Conv1d(40, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, NUM_WORDS)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        wave, label = batch
        if not self.trainer.training:
            return batch
        taps = 800
        decay = 3 + 9 * torch.rand(())
        response = 0.05 * torch.randn(taps) * torch.exp(-decay * torch.arange(taps) / taps)
        response[0] = 1.0
        wave = F.conv1d(F.pad(wave[:, None], (taps - 1, 0)), response.flip(0)[None, None])[:, 0]  # costs time
        return wave, label

    def forward(self, wave):
        spec = torch.stft(wave, 512, hop_length=160, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        features = torch.log(power.transpose(1, 2) @ self.mel + 1e-4).transpose(1, 2)
        return self.head(self.convs(features).mean(-1))

    def training_step(self, batch, batch_idx):
        wave, label = batch
        loss = F.cross_entropy(self(wave), label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        wave, label = batch
        self.log("val_accuracy", (self(wave).argmax(1) == label).float().mean(), batch_size=len(wave))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(53)
    train, val = record_words(1200, seed=1), record_words(128, seed=2)
    train_loader = DataLoader(train, sampler=BatchSampler(RandomSampler(train), 16, drop_last=True), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(KeywordSpotter(), train_loader, DataLoader(val, batch_size=64))


if __name__ == "__main__":
    main()
