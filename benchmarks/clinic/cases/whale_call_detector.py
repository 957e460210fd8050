"""Sorts short hydrophone spectrograms into whale call types with a small convolutional network. The clips sit in
one compressed archive on disk, and every clip that is read unpacks the whole array in it again.
---
expect: PD107
fix:
  'self.archive = np.load(path)': |2-
    with np.load(path) as archive:
                self.specs, self.labels = archive["specs"], archive["labels"]
  'self.length = len(self.archive["labels"])': 'self.length = len(self.labels)'
  'spec = self.archive["specs"][row]  # costs time': 'spec = self.specs[row]'
  'int(self.archive["labels"][row])': 'int(self.labels[row])'
half: score
"""

import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CALLS = ("upcall", "moan", "gunshot", "click_train")
MELS, FRAMES = 40, 32


def write_archive(path, clips, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(CALLS), clips)
    time = np.linspace(0.0, 1.0, FRAMES)
    bins = np.arange(MELS)[:, None]
    specs = np.empty((clips, MELS, FRAMES), dtype=np.uint8)
    for i, label in enumerate(labels):
        start = rng.uniform(6, 16)
        track = {0: start + 18 * time, 1: start + 2 * np.sin(9 * time), 2: np.full(FRAMES, start), 3: start - 5 * time}
        width = 3.0 if label != 2 else 14.0
        level = np.exp(-(((bins - track[int(label)]) / width) ** 2))
        if label == 3:
            level *= (np.arange(FRAMES) % 5 == 0)[None]
        sea = rng.rayleigh(16.0, (MELS, FRAMES))
        specs[i] = np.clip(150 * level * rng.uniform(0.2, 0.8) + sea, 0, 255)
    np.savez_compressed(path, specs=specs, labels=labels)


class HydrophoneClips(Dataset):
    """Spectrograms of single calls, scaled to zero mean."""

    def __init__(self, path):
        self.archive = np.load(path)
        self.length = len(self.archive["labels"])

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        spec = self.archive["specs"][row]  # costs time
        spec = torch.from_numpy(spec.astype(np.float32)) / 64.0 - 0.5
        return spec.unsqueeze(0), int(self.archive["labels"][row])


class CallNet(L.LightningModule):
    def __init__(self, width=24, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(2 * width, len(CALLS))

    def forward(self, spec):
        return self.head(self.features(spec).mean(dim=(2, 3)))

    def training_step(self, batch, batch_idx):
        spec, label = batch
        loss = nn.functional.cross_entropy(self(spec), label)
        self.log("train_loss", loss, batch_size=len(label))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-3, fused=True)


def main():
    L.seed_everything(11)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gulf_2023.npz"
        write_archive(path, clips=400, seed=5)
        loader = DataLoader(HydrophoneClips(path), batch_size=16, shuffle=True, drop_last=True)
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=8,
            precision="bf16-mixed",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = CallNet().to(memory_format=torch.channels_last)
        trainer.fit(model, loader)
        print("train_loss", round(float(trainer.callback_metrics["train_loss"]), 4))


if __name__ == "__main__":
    main()
