"""Denoising autoencoder over wide tables of turbine measurements for anomaly detection, well configured.
---
half: score
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

SENSORS = 256


def measurements(n):
    hidden = torch.randn(n, 12)
    mixing = torch.randn(12, SENSORS)
    return torch.tanh(hidden @ mixing) + 0.05 * torch.randn(n, SENSORS)


def batches(table, sampler, size):
    dataset = TensorDataset(table)
    return DataLoader(dataset, sampler=BatchSampler(sampler(dataset), size, drop_last=False), batch_size=None)


class TurbineAutoencoder(LightningModule):
    def __init__(self, noise=0.1):
        super().__init__()
        self.noise = noise
        self.encoder = nn.Sequential(
            nn.Linear(SENSORS, 640), nn.GELU(), nn.Linear(640, 256), nn.GELU(), nn.Linear(256, 16)
        )
        self.decoder = nn.Sequential(
            nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 640), nn.GELU(), nn.Linear(640, SENSORS)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = F.mse_loss(self(x + self.noise * torch.randn_like(x)), x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", F.mse_loss(self(x), x))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-4, fused=True)


if __name__ == "__main__":
    seed_everything(10)
    table = measurements(34_816)
    train = batches(table[2048:], RandomSampler, 256)
    val = batches(table[:2048], SequentialSampler, 512)
    trainer = Trainer(
        max_epochs=5,
        accelerator="cpu",
        precision="bf16-mixed",
        callbacks=[EarlyStopping("val_loss", patience=3)],
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(TurbineAutoencoder(), train, val)
