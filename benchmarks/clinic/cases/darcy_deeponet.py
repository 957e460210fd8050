"""Trains a DeepONet surrogate that maps permeability fields to pressure at scattered points of a porous medium.
The dataset keeps the lazy archive of np.load, which decompresses the whole array again for every batch.
---
expect: [PD107, PD101]
half: tune
fix:
  ? "self.archive = np.load(path)"
  : "self.archive = dict(np.load(path))"
"""

import tempfile
from itertools import pairwise
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

GRID = 32
SENSORS = GRID * GRID
POINTS = 256
MODES = 6


def write_simulations(path: Path, runs: int) -> None:
    """Writes synthetic pairs of permeability and pressure fields, as the flow solver would export them."""
    rng = np.random.default_rng(23)
    axis = np.linspace(0.0, np.pi, GRID, dtype=np.float32)
    basis = np.stack([np.outer(np.sin(i * axis), np.sin(j * axis)) for i in range(1, MODES) for j in range(1, MODES)])
    order = np.array([i * i + j * j for i in range(1, MODES) for j in range(1, MODES)], dtype=np.float32)
    weights = rng.standard_normal((runs, len(order))).astype(np.float32) / order
    permeability = np.exp(np.tensordot(weights, basis, axes=1))
    pressure = np.tensordot(weights / order, basis, axes=1) + 0.05 * permeability
    np.savez_compressed(path, permeability=permeability.reshape(runs, -1), pressure=pressure.reshape(runs, -1))


class DarcyRuns(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Permeability of a run, and its pressure at randomly drawn points of the unit square."""

    def __init__(self, path: Path, runs: int) -> None:
        self.archive = np.load(path)
        self.runs = runs
        axis = torch.linspace(0.0, 1.0, GRID)
        self.coordinates = torch.cartesian_prod(axis, axis)

    def __len__(self) -> int:
        return self.runs

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        points = torch.randperm(SENSORS)[:POINTS]
        permeability = torch.from_numpy(self.archive["permeability"][index])  # costs time
        pressure = torch.from_numpy(self.archive["pressure"][index])[:, points]  # costs time
        return permeability, self.coordinates[points], pressure


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class DeepONet(L.LightningModule):
    def __init__(self, width: int = 768, rank: int = 128, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.branch = mlp([SENSORS, width, width, width, rank])
        self.trunk = mlp([2, 256, 256, rank])
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, permeability: Tensor, coordinates: Tensor) -> Tensor:
        return self.branch(permeability.log()) @ self.trunk(coordinates).T + self.offset

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        permeability, coordinates, pressure = batch
        predicted = self(permeability, coordinates)
        loss = F.mse_loss(predicted, pressure)
        relative = (predicted.detach() - pressure).norm(dim=1) / pressure.norm(dim=1)
        self.log("train/mse", loss)
        self.log("train/relative_l2", relative.mean())
        return loss

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main() -> None:
    L.seed_everything(23)
    runs = 1024
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "darcy.npz"
        write_simulations(path, runs)
        dataset = DarcyRuns(path, runs)
        sampler = BatchSampler(RandomSampler(dataset), batch_size=128, drop_last=True)
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=22,
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(DeepONet(), loader)


if __name__ == "__main__":
    main()
