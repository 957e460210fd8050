"""Trains a network that regresses the pose of a patient from simulated X-ray views of one CT volume, with a checkpoint
every tenth step; the constant CT volume is a persistent buffer, so that each checkpoint writes all of it again.
---
expect: PD602
fix:
  ? |2-
            self.register_buffer("volume", volume)  # costs time
  : |2-
            self.register_buffer("volume", volume, persistent=False)
half: tune
"""

import tempfile

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, DETECTOR, RAY_STEPS = 256, 24, 16


class Poses(Dataset):
    """Random poses: three angles and three shifts."""

    def __init__(self, count: int, seed: int):
        self.poses = torch.rand(count, 6, generator=torch.Generator().manual_seed(seed)) * 0.6 - 0.3

    def __len__(self):
        return len(self.poses)

    def __getitems__(self, indices):
        return self.poses[torch.as_tensor(indices)]


def as_is(batch):
    return batch


def make_volume(side: int) -> torch.Tensor:
    """A smooth body with some dense structures, as (1, 1, D, H, W)."""
    coarse = torch.rand(1, 1, 12, 12, 12, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, size=(side, side, side), mode="trilinear", align_corners=True)


def rotation(angles: torch.Tensor) -> torch.Tensor:
    """Rotation matrices of small rotation vectors."""
    zero = torch.zeros_like(angles[:, 0])
    a, b, c = angles.unbind(1)
    skew = torch.stack([zero, -c, b, c, zero, -a, -b, a, zero], 1).view(-1, 3, 3)
    return torch.linalg.matrix_exp(skew)


class PoseRegressor(lightning.LightningModule):
    def __init__(self, volume: torch.Tensor):
        super().__init__()
        self.register_buffer("volume", volume)  # costs time
        lines = torch.linspace(-0.7, 0.7, DETECTOR)
        depth = torch.linspace(-0.7, 0.7, RAY_STEPS)
        z, y, x = torch.meshgrid(depth, lines, lines, indexing="ij")
        self.register_buffer("rays", torch.stack([x, y, z], -1).view(-1, 3), persistent=False)
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 36, 128),
            nn.ReLU(),
            nn.Linear(128, 6),
        )

    @torch.no_grad()
    def project(self, pose):
        """Parallel-beam projections of the volume, one for each pose."""
        points = self.rays @ rotation(pose[:, :3]).mT + pose[:, None, 3:]
        grid = points.view(1, len(pose) * RAY_STEPS, DETECTOR, DETECTOR, 3)
        density = F.grid_sample(self.volume, grid, align_corners=True)
        image = density.view(len(pose), 1, RAY_STEPS, DETECTOR, DETECTOR).mean(2)
        return (image - 0.5) * 6

    def training_step(self, pose, batch_idx):
        return F.mse_loss(self.net(self.project(pose)), pose)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    lightning.seed_everything(2, verbose=False)
    loader = DataLoader(Poses(24 * 50, seed=1), batch_size=24, shuffle=True, collate_fn=as_is)
    folder = tempfile.mkdtemp()
    keeper = ModelCheckpoint(dirpath=folder, every_n_train_steps=10, save_top_k=1)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        callbacks=[keeper],
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(PoseRegressor(make_volume(SIDE)), loader)
