"""Trains a spectral-mask network that removes reverberation from one-second speech-like signals; the room is applied to
each batch on the fly. The convolution with the room uses an FFT of length signal + response - 1 = 19999, which has
a large prime factor, instead of padding to a length that the FFT handles well.
---
expect: PD335
fix:
  ? "        n = wave.size(-1) + room.size(-1) - 1"
  : "        n = fft.next_fast_len(wave.size(-1) + room.size(-1) - 1, real=True)"
half: tune
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from scipy import fft, signal  # noqa: F401 - the fix needs fft
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RATE = 16000
ROOM_SAMPLES = 4000


def make_speech(count, seed=0):
    rng = np.random.default_rng(seed)
    time = np.arange(RATE, dtype=np.float32) / RATE
    sos = signal.butter(2, [200, 3800], btype="band", fs=RATE, output="sos").astype(np.float32)
    waves = np.empty((count, RATE), dtype=np.float32)
    for i in range(count):
        pitch = rng.uniform(90, 250)
        phase = np.cumsum(pitch * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(2, 5) * time))) / RATE
        envelope = np.clip(np.sin(2 * np.pi * rng.uniform(2, 4) * time + rng.uniform(0, 6)), 0, None)
        waves[i] = signal.sosfilt(sos, (2 * (phase % 1) - 1) * envelope)
    return torch.from_numpy(waves / np.abs(waves).max(axis=1, keepdims=True))


def make_rooms(count, seed=1):
    gen = torch.Generator().manual_seed(seed)
    decay = torch.empty(count, 1).uniform_(600, 2000, generator=gen)
    rooms = torch.randn(count, ROOM_SAMPLES, generator=gen) * torch.exp(-torch.arange(ROOM_SAMPLES) / decay) * 0.1
    rooms[:, 0] = 1.0
    return rooms


class MaskNet(nn.Module):
    def __init__(self, bins, width=112):
        super().__init__()
        self.inp = nn.Linear(bins, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, bins)

    def forward(self, magnitude):
        hidden, _ = self.rnn(F.relu(self.inp(torch.log1p(magnitude))))
        return torch.sigmoid(self.out(hidden))


class Dereverb(L.LightningModule):
    def __init__(self, rooms, n_fft=512, hop=256):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.net = MaskNet(n_fft // 2 + 1)
        self.register_buffer("rooms", rooms)
        self.register_buffer("window", torch.hann_window(n_fft))

    def add_room(self, wave):
        room = self.rooms[torch.randint(len(self.rooms), (len(wave),))]
        n = wave.size(-1) + room.size(-1) - 1
        spectrum = torch.fft.rfft(wave, n=n) * torch.fft.rfft(room, n=n)  # costs time
        return torch.fft.irfft(spectrum, n=n)[:, : wave.size(-1)]  # costs time

    def magnitude(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        return spec.abs().transpose(1, 2)

    def training_step(self, batch, batch_idx):
        (clean,) = batch
        with torch.no_grad():
            wet, dry = self.magnitude(self.add_room(clean)), self.magnitude(clean)
        mask = self.net(wet)
        loss = F.l1_loss(torch.log1p(mask * wet), torch.log1p(dry))
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    data = TensorDataset(make_speech(640))
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    trainer = L.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Dereverb(make_rooms(64)), loader)
