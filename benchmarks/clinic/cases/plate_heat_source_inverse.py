"""A network reads the thermometers on a plate and infers where it is heated; the loss runs its guess through
a differentiable implicit heat solver. Every time step solves with the same matrix, which is factorized
each time.
---
expect: [PD327, PD328]
fix:
  ? 'self.register_buffer("system", torch.eye(SIDE**2) - DT * laplacian())'
  : |-
    lu, pivots = torch.linalg.lu_factor(torch.eye(SIDE**2) - DT * laplacian())
            self.register_buffer("lu", lu)
            self.register_buffer("pivots", pivots)
  ? 'heat = torch.linalg.solve(self.system, heat + DT * source)  # costs time'
  : 'heat = torch.linalg.lu_solve(self.lu, self.pivots, heat + DT * source)'
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 26
STEPS = 8
DT = 0.5


def laplacian():
    """Five-point stencil on the plate with a cold rim, twice as conductive in its left half."""
    line = torch.diag(torch.full((SIDE,), -2.0))
    line += torch.diag(torch.ones(SIDE - 1), 1) + torch.diag(torch.ones(SIDE - 1), -1)
    eye = torch.eye(SIDE)
    conductivity = torch.where(torch.arange(SIDE) < SIDE // 2, 2.0, 1.0).repeat(SIDE)
    return conductivity[:, None] * (torch.kron(line, eye) + torch.kron(eye, line))


class HeatPlate(nn.Module):
    """Implicit Euler steps of the heat equation with a constant source, from a cold plate."""

    def __init__(self):
        super().__init__()
        self.register_buffer("system", torch.eye(SIDE**2) - DT * laplacian())
        sensors = torch.arange(SIDE**2).view(SIDE, SIDE)[1::3, 1::3]
        self.register_buffer("sensors", sensors.flatten())

    def forward(self, source):
        source = source.flatten(1).T
        heat = torch.zeros_like(source)
        readings = []
        for _ in range(STEPS):
            heat = torch.linalg.solve(self.system, heat + DT * source)  # costs time
            readings.append(heat[self.sensors])
        return torch.stack(readings).permute(2, 0, 1)


def heat_plates(count: int, seed: int):
    """Sources of two round spots each, and the noisy readings of the thermometers over time."""
    gen = torch.Generator().manual_seed(seed)
    axis = torch.linspace(0, 1, SIDE)
    source = torch.zeros(count, SIDE, SIDE)
    for _ in range(2):
        x, y = torch.rand(2, count, 1, generator=gen) * 0.8 + 0.1
        power = torch.rand(count, 1, 1, generator=gen) + 0.5
        gx, gy = torch.exp(-(((axis - x) / 0.12) ** 2)), torch.exp(-(((axis - y) / 0.12) ** 2))
        source += power * gy[:, :, None] * gx[:, None, :]
    with torch.no_grad():
        readings = HeatPlate()(source)
    return readings + 0.02 * torch.randn(readings.shape, generator=gen), source


class SourceFinder(L.LightningModule):
    def __init__(self, width=16, lr=1e-3, smooth=0.02):
        super().__init__()
        self.plate = HeatPlate()
        self.lift = nn.Sequential(
            nn.Flatten(),
            nn.Linear(STEPS * len(self.plate.sensors), 256),
            nn.SiLU(),
            nn.Linear(256, 8 * (SIDE // 2) ** 2),
            nn.Unflatten(1, (8, SIDE // 2, SIDE // 2)),
            nn.Upsample(scale_factor=2),
        )
        self.refine = nn.Sequential(
            nn.Conv2d(8, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 1, 3, padding=1),
        )
        self.to(memory_format=torch.channels_last)
        self.lr = lr
        self.smooth = smooth

    def forward(self, readings):
        return self.refine(self.lift(readings)).squeeze(1)

    def training_step(self, batch, batch_idx):
        readings, _ = batch
        source = self(readings)
        rough = source.diff(dim=1).square().mean() + source.diff(dim=2).square().mean()
        loss = F.mse_loss(self.plate(source), readings) + self.smooth * rough
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        readings, truth = batch
        source = self(readings)
        self.log_dict(
            {
                "val_misfit": F.mse_loss(self.plate(source), readings),
                "val_source_error": F.l1_loss(source, truth),
            }
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    L.seed_everything(19)
    train = DataLoader(TensorDataset(*heat_plates(1120, 1)), batch_size=16, shuffle=True)
    val = DataLoader(TensorDataset(*heat_plates(128, 2)), batch_size=32)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SourceFinder(), train, val)
