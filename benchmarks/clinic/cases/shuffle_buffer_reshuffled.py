"""A stream of samples with a shuffle buffer that is shuffled as a whole before each sample it returns.
---
expect: PD107
half: tune
fix:
  'self.random.shuffle(buffer)  # costs time': 'buffer.append(buffer.pop(self.random.randrange(len(buffer))))'
"""

import random

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

N_SAMPLES = 4096
BUFFER_SIZE = 800


class ShuffledStream(IterableDataset):
    def __init__(self):
        numbers = np.random.default_rng(0)
        self.x = numbers.normal(size=(N_SAMPLES, 256)).astype(np.float32)
        self.y = numbers.integers(0, 20, N_SAMPLES)
        self.random = random.Random(0)

    def __iter__(self):
        buffer = []
        for sample in zip(self.x, self.y, strict=True):
            buffer.append(sample)
            if len(buffer) == BUFFER_SIZE:
                self.random.shuffle(buffer)  # costs time
                yield buffer.pop()
        yield from buffer


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 20))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(1)
    loader = DataLoader(ShuffledStream(), batch_size=32)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader)
