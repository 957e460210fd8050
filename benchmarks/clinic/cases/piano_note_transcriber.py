"""A convolutional net hears which of 88 piano keys sound in windows of a log-mel spectrogram; a balanced
sampler draws rare chords more often. The sampler draws each index with a call of its own over the weights of
all frames.
---
expect: [PD107, PD511]
fix:
  ? |-
    for _ in range(self.num_samples):
                yield int(self.rng.choice(len(self.probs), p=self.probs))  # costs time
  : |-
    yield from self.rng.choice(len(self.probs), size=self.num_samples, p=self.probs).tolist()
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

KEYS = 88
MELS = 96
CONTEXT = 16


def synthesize(frames: int, seed: int):
    """Piano rolls with chords of changing size, and their spectrogram: overtones of the keys plus noise."""
    rng = np.random.default_rng(seed)
    chords = frames // 8
    roll = np.zeros((chords, KEYS), dtype=np.float32)
    sizes = np.minimum(rng.geometric(0.5, size=chords), 6)
    for row, size in zip(roll, sizes, strict=True):
        row[rng.integers(0, KEYS, size=size)] = 1.0
    roll = np.repeat(roll, 8, axis=0)
    timbre = np.exp(-0.5 * ((np.arange(MELS)[None] - np.arange(KEYS)[:, None]) / 1.5) ** 2)
    timbre += 0.5 * np.roll(timbre, 7, axis=1)
    mel = np.log1p(5 * roll @ timbre.astype(np.float32))
    mel += 0.2 * rng.standard_normal(mel.shape, dtype=np.float32)
    return torch.from_numpy(mel), torch.from_numpy(roll)


class FrameWindows(Dataset):
    def __init__(self, mel, roll):
        self.mel = mel
        self.roll = roll

    def __len__(self):
        return len(self.mel) - CONTEXT

    def __getitem__(self, index):
        return self.mel[index : index + CONTEXT], self.roll[index + CONTEXT // 2]


class PolyphonySampler(Sampler):
    """Draws every chord size equally often, with replacement."""

    def __init__(self, data: FrameWindows, num_samples: int, seed: int = 0):
        sizes = data.roll[CONTEXT // 2 :][: len(data)].sum(dim=1).long()
        weights = (1.0 / torch.bincount(sizes)[sizes].double()).numpy()
        self.probs = weights / weights.sum()
        self.num_samples = num_samples
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.num_samples

    def __iter__(self):
        for _ in range(self.num_samples):
            yield int(self.rng.choice(len(self.probs), p=self.probs))  # costs time


class Transcriber(L.LightningModule):
    def __init__(self, width=16, lr=1e-3):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d((2, 2)),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d((2, 2)),
        )
        self.head = nn.Sequential(
            nn.Linear(2 * width * (CONTEXT // 4) * (MELS // 4), 128), nn.ReLU(inplace=True), nn.Linear(128, KEYS)
        )
        self.to(memory_format=torch.channels_last)
        self.lr = lr

    def forward(self, mel):
        return self.head(self.conv(mel.unsqueeze(1)).flatten(1))

    def training_step(self, batch, batch_idx):
        mel, roll = batch
        loss = F.binary_cross_entropy_with_logits(self(mel), roll)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        mel, roll = batch
        pred = self(mel) > 0
        hits = (pred & (roll > 0)).sum()
        self.log("val_f1", 2 * hits / (pred.sum() + roll.sum()).clamp(min=1))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(3)
    train_set = FrameWindows(*synthesize(60_000, seed=1))
    val_set = FrameWindows(*synthesize(512, seed=2))
    sampler = PolyphonySampler(train_set, num_samples=32 * 90)
    train = DataLoader(train_set, batch_size=32, sampler=sampler)
    val = DataLoader(val_set, batch_size=64)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Transcriber(), train, val)
