r"""Trains an embedding network that tells writers apart by their handwriting with a batch-hard triplet loss; the batch
sampler searches all labels again for each writer it draws.
---
expect: [PD511, PD101, PD107]
fix:
  "self.writers = writers.tolist()": |-
    self.lines = {}
            for i, w in enumerate(writers.tolist()):
                self.lines.setdefault(w, []).append(i)
  "lines = [i for i, w in enumerate(self.writers) if w == writer]  # costs time": "lines = self.lines[writer]"
half: score
"""

import random

import lightning
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler


def make_lines(writers=500, lines=50, seed=3):
    """Line images (uint8) with a slant, a stroke distance and a pen width typical of the writer."""
    rng = np.random.default_rng(seed)
    slant, distance, pen = (rng.uniform(low, high, (writers, 1, 1, 1)) for low, high in ((-1, 1), (5, 14), (0.2, 0.8)))
    y, x = np.mgrid[0:32, 0:64].astype(np.float32)
    shift = rng.uniform(0, 20, (writers, lines, 1, 1))
    ink = np.cos(2 * np.pi * (x + slant * y + shift).astype(np.float32) / distance.astype(np.float32)) > pen
    images = (ink * 200).astype(np.uint8) + rng.integers(0, 50, ink.shape, dtype=np.uint8)
    order = rng.permutation(writers * lines)
    return torch.from_numpy(images.reshape(-1, 1, 32, 64)[order]), np.repeat(np.arange(writers), lines)[order]


class Lines(Dataset):
    def __init__(self, images, writers):
        self.images, self.writers = images, torch.from_numpy(writers)

    def __len__(self):
        return len(self.images)

    def __getitems__(self, indices):
        return self.images[indices], self.writers[indices]


class WriterBatches(Sampler):
    """Batches of two or more lines each of a few writers, as the triplet loss needs them."""

    def __init__(self, writers, batches, writers_per_batch=32, lines_per_writer=2, seed=0):
        self.writers = writers.tolist()
        self.known = sorted(set(writers.tolist()))
        self.batches, self.p, self.k = batches, writers_per_batch, lines_per_writer
        self.random = random.Random(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for writer in self.random.sample(self.known, self.p):
                lines = [i for i, w in enumerate(self.writers) if w == writer]  # costs time
                batch.extend(self.random.sample(lines, self.k))
            yield batch


class WriterEmbedding(lightning.LightningModule):
    def __init__(self, width=16, margin=0.3):
        super().__init__()
        self.margin = margin
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d((2, 4)),
            nn.Flatten(),
            nn.Linear(16 * width, 64),
        )

    def forward(self, images):
        return F.normalize(self.body(images.float().sub_(110).div_(90)), dim=1)

    def training_step(self, batch, batch_idx):
        images, writers = batch
        embedded = self(images)
        distance = 1 - embedded @ embedded.T
        same = writers[:, None] == writers[None, :]
        hardest_positive = distance.masked_fill(~same, -1).amax(dim=1)
        hardest_negative = distance.masked_fill(same, 3).amin(dim=1)
        return F.relu(hardest_positive - hardest_negative + self.margin).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(3)
    images, writers = make_lines()
    loader = DataLoader(
        Lines(images, writers), batch_sampler=WriterBatches(writers, batches=50), collate_fn=lambda batch: batch
    )
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(WriterEmbedding(), loader)


if __name__ == "__main__":
    main()
