"""Keyword spotting on log-mel spectrograms; the collate function hands torch.tensor a list of numpy arrays, which is
converted number by number.
---
expect: PD108
half: score
fix:
  ? "    mels = torch.tensor([clip for clip, _ in batch])  # costs time"
  : "    mels = torch.from_numpy(np.stack([clip for clip, _ in batch]))"
"""

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")

WORDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]


class SpokenWords(Dataset):
    def __init__(self, num_clips=2560, n_mels=40, frames=100, crop=96):
        rng = np.random.default_rng(5)
        self.crop = crop
        self.labels = rng.integers(0, len(WORDS), size=num_clips)
        patterns = rng.normal(size=(len(WORDS), n_mels, frames)).astype(np.float32)
        noise = rng.standard_normal((num_clips, n_mels, frames), dtype=np.float32)
        self.clips = patterns[self.labels] + noise

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        start = np.random.randint(0, self.clips.shape[-1] - self.crop + 1)
        return self.clips[i, :, start : start + self.crop], int(self.labels[i])


def collate_clips(batch):
    mels = torch.tensor([clip for clip, _ in batch])  # costs time
    labels = torch.tensor([label for _, label in batch])
    return mels, labels


class DepthwiseBlock(nn.Module):
    def __init__(self, channels, kernel=9):
        super().__init__()
        self.depthwise = nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.pointwise = nn.Conv1d(channels, channels, 1)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return F.relu(x + self.norm(self.pointwise(self.depthwise(x))))


class KeywordNet(LightningModule):
    def __init__(self, n_mels=40, channels=64):
        super().__init__()
        self.stem = nn.Conv1d(n_mels, channels, 5, stride=2, padding=2)
        self.blocks = nn.Sequential(*[DepthwiseBlock(channels) for _ in range(3)])
        self.head = nn.Linear(channels, len(WORDS))

    def forward(self, mels):
        return self.head(self.blocks(self.stem(mels)).mean(dim=-1))

    def training_step(self, batch, batch_idx):
        mels, labels = batch
        loss = F.cross_entropy(self(mels), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(5)
    loader = DataLoader(SpokenWords(), batch_size=32, shuffle=True, collate_fn=collate_clips)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(KeywordNet(), loader)
