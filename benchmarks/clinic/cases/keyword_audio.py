r"""Spotting of keywords in raw audio with a 1-D convolutional network; model and data are in double precision because
the waveforms came as float64.
---
expect: PD315
half: score
fix:
  ? "torch.from_numpy(waves)"
  : "torch.from_numpy(waves).float()"
  ? "precision=\"64-true\","
  : "precision=\"32-true\","
"""

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RATE, WORDS = 4000, 10


def recordings(n):
    rng = np.random.default_rng(0)
    word = rng.integers(0, WORDS, n)
    seconds = np.arange(RATE) / RATE
    pitch = 150 + 90 * word[:, None]
    waves = np.sin(2 * np.pi * pitch * seconds) * rng.uniform(0.3, 1.0, (n, 1))
    waves = waves + 0.3 * rng.standard_normal((n, RATE))
    return TensorDataset(torch.from_numpy(waves).unsqueeze(1), torch.from_numpy(word))


class KeywordNet(LightningModule):
    def __init__(self, width=24):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, width, 80, stride=8),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(width, 2 * width, 3, padding=1),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(2 * width, 2 * width, 3, padding=1),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, WORDS)

    def forward(self, wave):
        return self.head(self.features(wave).mean(-1))

    def training_step(self, batch, batch_idx):
        wave, word = batch
        logits = self(wave)
        loss = F.cross_entropy(logits, word)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
        return [optimizer], [scheduler]


if __name__ == "__main__":
    seed_everything(1)
    loader = DataLoader(recordings(1280), batch_size=16, shuffle=True)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        precision="64-true",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(KeywordNet(), loader)
