"""A transformer classifies bird calls; the log-mel-like features of the clips are computed once before the training.
---
half: score
"""

import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

NUM_SPECIES = 8
BANDS = 48


def record_calls(count, seed, rate=8000, seconds=1.0):
    gen = torch.Generator().manual_seed(seed)
    t = torch.arange(int(rate * seconds)) / rate
    label = torch.randint(0, NUM_SPECIES, (count,), generator=gen)
    base = 900 + 250 * label[:, None] + 60 * torch.randn(count, 1, generator=gen)
    trill = 40 * (1 + label[:, None] % 3) * torch.sin(2 * math.pi * (4 + label[:, None]) * t)
    wave = torch.sin(2 * math.pi * base * t + trill) * (torch.sin(2 * math.pi * 3 * t) > 0)
    return wave + 0.3 * torch.randn(count, len(t), generator=gen), label


def log_bands(wave):
    """Log power in 48 bands, 64 frames a second (one pass over all clips)."""
    spec = torch.stft(wave, 384, hop_length=125, window=torch.hann_window(384), return_complex=True)
    power = spec.abs().square()[:, 1:]
    bands = F.adaptive_avg_pool1d(power.transpose(1, 2), BANDS)[:, :64]
    features = torch.log(bands + 1e-3)
    return (features - features.mean()) / features.std()


def dataset(count, seed):
    wave, label = record_calls(count, seed)
    return TensorDataset(log_bands(wave), label)


class CallTransformer(L.LightningModule):
    def __init__(self, width=128, depth=2):
        super().__init__()
        self.embed = nn.Linear(BANDS, width)
        self.position = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, NUM_SPECIES))

    def forward(self, features):
        return self.head(self.encoder(self.embed(features) + self.position).mean(1))

    def training_step(self, batch, batch_idx):
        features, label = batch
        loss = F.cross_entropy(self(features), label)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        features, label = batch
        self.log("val_accuracy", (self(features).argmax(1) == label).float().mean(), batch_size=len(label))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-4, fused=True)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


def batches(data, sampler, batch_size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), batch_size, drop_last=False), batch_size=None)


def main():
    L.seed_everything(71)
    train, val = dataset(1200, seed=1), dataset(128, seed=2)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(CallTransformer(), batches(train, RandomSampler, 20), batches(val, SequentialSampler, 64))


if __name__ == "__main__":
    main()
