"""The diffusivity of an aquifer is recovered from snapshots of a dye plume by gradient descent through an explicit
solver. Every solver step is wrapped in activation checkpointing although the whole tape takes only some megabytes.
---
expect: PD332
fix:
  ? |-
    u = checkpoint(advance, u, east, south, keep, use_reentrant=False)  # costs time
  : |-
    u = advance(u, east, south, keep)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

GRID = 96
STEPS = 24


def advance(u, east, south, keep):
    """One explicit step of du/dt = div(D grad u) - k u, keep = 1 - k; no flux leaves through the boundary."""
    flow_x = F.pad(east * u.diff(dim=2), (1, 1))
    flow_y = F.pad(south * u.diff(dim=1), (0, 0, 1, 1))
    return keep * u + flow_x.diff(dim=2) + flow_y.diff(dim=1)


def faces(d):
    """Diffusivities on the faces between the cells."""
    return 0.5 * (d[:, 1:] + d[:, :-1]), 0.5 * (d[1:, :] + d[:-1, :])


def solve(u, diffusivity, keep):
    east, south = faces(diffusivity)
    for _ in range(STEPS):
        u = checkpoint(advance, u, east, south, keep, use_reentrant=False)  # costs time
    return u


def make_experiments(n):
    """Dye injections at random places, and the plumes seen STEPS later in an aquifer with two lenses."""
    axis = torch.arange(GRID, dtype=torch.float32)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    truth = 0.08 + 0.08 * torch.sigmoid((18 - ((xx - 30) ** 2 + (yy - 60) ** 2).sqrt()) / 2)
    truth = truth - 0.05 * torch.sigmoid((14 - ((xx - 66) ** 2 + (yy - 34) ** 2).sqrt()) / 2)
    cx, cy = 20 + 56 * torch.rand(n, 1, 1), 20 + 56 * torch.rand(n, 1, 1)
    sigma = 2 + torch.rand(n, 1, 1)
    start = torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / (2 * sigma**2))
    with torch.no_grad():
        seen = solve(start, truth, 0.99)
    return start, seen + 1e-4 * torch.randn_like(seen)


class Inversion(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.log_d = nn.Parameter(torch.full((1, 1, GRID // 4, GRID // 4), 0.08).log())
        self.log_decay = nn.Parameter(torch.tensor(0.02).log())

    def diffusivity(self):
        d = F.interpolate(self.log_d, size=(GRID, GRID), mode="bilinear", align_corners=False)
        return d[0, 0].exp().clamp(max=0.24)

    def training_step(self, batch, batch_idx):
        start, seen = batch
        d = self.diffusivity()
        misfit = F.mse_loss(solve(start, d, 1 - self.log_decay.exp()), seen)
        roughness = (d[1:] - d[:-1]).square().mean() + (d[:, 1:] - d[:, :-1]).square().mean()
        self.log("misfit", misfit, on_step=False, on_epoch=True)
        return 1e4 * misfit + roughness

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02, fused=True)


def main():
    L.seed_everything(13)
    loader = DataLoader(TensorDataset(*make_experiments(256)), batch_size=4, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Inversion(), loader)


if __name__ == "__main__":
    main()
