"""Trains a wide fully connected surrogate that maps permeability fields to pressure fields of a Darcy flow, with SGD.
The weight penalty is summed over all parameters in the loss, through autograd, instead of being left to the optimizer's
weight_decay, which for SGD gives the same update.
---
expect: PD335
fix:
  ? |2
            penalty = sum(p.pow(2).sum() for p in self.parameters())  # costs time
  : ""
  ? "        return mse + self.penalty_weight * penalty"
  : "        return mse"
  ? "momentum=0.9, nesterov=True, fused=True)"
  : "momentum=0.9, nesterov=True, weight_decay=2 * self.penalty_weight, fused=True)"
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GRID = 24


def make_flows(count, seed=0):
    """Smooth log-permeability fields and the pressure after a few damped relaxation sweeps."""
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 1, 6, 6, generator=gen)
    logk = F.interpolate(coarse, size=(GRID, GRID), mode="bicubic", align_corners=True)
    k = torch.exp(0.5 * logk)
    pressure = torch.zeros_like(k)
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]).view(1, 1, 3, 3)
    weight = F.conv2d(k, kernel, padding=1)
    for _ in range(40):
        pressure = (F.conv2d(k * pressure, kernel, padding=1) + 0.1) / (weight + 1e-3)
    mean, std = pressure.mean(), pressure.std()
    return logk.flatten(1), ((pressure - mean) / std).flatten(1)


class DarcySurrogate(L.LightningModule):
    def __init__(self, width=2048, penalty_weight=1e-5, lr=0.02):
        super().__init__()
        self.penalty_weight = penalty_weight
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(GRID * GRID, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, GRID * GRID),
        )

    def forward(self, logk):
        return self.net(logk)

    def training_step(self, batch, batch_idx):
        logk, pressure = batch
        mse = F.mse_loss(self(logk), pressure)
        penalty = sum(p.pow(2).sum() for p in self.parameters())  # costs time
        self.log("train_mse", mse)
        return mse + self.penalty_weight * penalty

    def validation_step(self, batch, batch_idx):
        logk, pressure = batch
        self.log("val_mse", F.mse_loss(self(logk), pressure))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, nesterov=True, fused=True)


if __name__ == "__main__":
    L.seed_everything(0)
    train = DataLoader(TensorDataset(*make_flows(1440)), batch_size=24, shuffle=True, drop_last=True)
    val = DataLoader(TensorDataset(*make_flows(240, seed=1)), batch_size=120)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(DarcySurrogate(), train, val)
