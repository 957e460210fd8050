"""Trains a network that infers heat sources from sensor readings, with a steady heat-equation solver as its last layer.
The mistake: the solver factorizes the constant system matrix again in every step.
---
expect: PD327
fix:
  ? '        self.register_buffer("matrix", matrix)'
  : |2-
            lu, pivots = torch.linalg.lu_factor(matrix)
            self.register_buffer("lu", lu)
            self.register_buffer("pivots", pivots)
  ? "        return torch.linalg.solve(self.matrix, sources.T).T  # costs time"
  : "        return torch.linalg.lu_solve(self.lu, self.pivots, sources.T).T"
half: tune
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GRID = 30


def heat_matrix(n, loss=0.02):
    eye = torch.eye(n)
    second = 2 * eye - torch.diag(torch.ones(n - 1), 1) - torch.diag(torch.ones(n - 1), -1)
    drift = torch.diag(torch.full((n - 1,), 0.15), 1) - torch.diag(torch.full((n - 1,), 0.15), -1)
    return torch.kron(second + drift, eye) + torch.kron(eye, second) + loss * torch.eye(n * n)


def make_sources(n, gen):
    line = torch.linspace(0, 1, GRID)
    fields = torch.zeros(n, GRID, GRID)
    for _ in range(3):
        cx, cy, power = torch.rand(3, n, 1, generator=gen).unbind(0)
        gx = torch.exp(-80 * (line - cx) ** 2)
        gy = torch.exp(-80 * (line - cy) ** 2)
        fields += power[:, :, None] * gx[:, :, None] * gy[:, None, :]
    return fields.flatten(1)


class HeatSolver(nn.Module):
    """Temperature field of given heat sources."""

    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, sources):
        return torch.linalg.solve(self.matrix, sources.T).T  # costs time


class SourceInversion(L.LightningModule):
    def __init__(self, matrix, sensors, width=384):
        super().__init__()
        self.solver = HeatSolver(matrix)
        self.register_buffer("sensors", sensors)
        self.encoder = nn.Sequential(
            nn.Linear(len(sensors), width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, GRID * GRID),
            nn.Softplus(),
        )

    def forward(self, readings):
        sources = self.encoder(readings)
        return sources, self.solver(sources)

    def step(self, batch, name):
        readings, field = batch
        sources, temperature = self(readings)
        misfit = F.mse_loss(temperature[:, self.sensors], readings)
        full = F.mse_loss(temperature, field)
        self.log(f"{name}_misfit", misfit, prog_bar=True)
        return misfit + full + 1e-3 * sources.mean()

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.step(batch, "val")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    L.seed_everything(5)
    gen = torch.Generator().manual_seed(5)
    matrix = heat_matrix(GRID)
    sensors = torch.randperm(GRID * GRID, generator=gen)[:60]
    temperature = torch.linalg.solve(matrix, make_sources(2944, gen).T).T.contiguous()
    temperature = temperature / temperature.std()
    data = TensorDataset(temperature[:, sensors], temperature)
    train, val = torch.utils.data.random_split(data, [2816, 128], generator=gen)
    trainer = L.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False)
    model = SourceInversion(matrix, sensors)
    trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True), DataLoader(val, batch_size=128))
