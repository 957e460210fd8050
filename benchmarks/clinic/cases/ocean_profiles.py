r"""Trains a convolutional network that estimates the mixed layer depth of the ocean from a year of surface observations
at a point; the observations are kept as daily maps, while the training reads series.
---
expect: [PD107, PD101, PD110]
fix:
  "self.maps = torch.from_numpy(maps.reshape(*maps.shape[:2], -1))": |-
    series = maps.reshape(*maps.shape[:2], -1).transpose(2, 1, 0)
            self.series = torch.from_numpy(series.copy())
  "series = self.maps[:, :, points].permute(2, 1, 0).contiguous()  # costs time": "series = self.series[points]"
half: tune
"""

import lightning
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DAYS, VARIABLES, ROWS, COLUMNS = 365, 4, 180, 240


def make_ocean(modes=10, seed=21):
    """Daily maps of temperature, salinity, height and wind: seasonal modes plus weather; depth by place."""
    rng = np.random.default_rng(seed)
    day = np.arange(DAYS, dtype=np.float32)[:, None]
    phase = rng.uniform(0, 2 * np.pi, (1, modes)).astype(np.float32)
    season = np.cos(2 * np.pi * day / DAYS * rng.integers(1, 6, (1, modes)).astype(np.float32) + phase)
    pattern = rng.standard_normal((modes, ROWS * COLUMNS), dtype=np.float32)
    maps = np.empty((DAYS, VARIABLES, ROWS, COLUMNS), dtype=np.float32)
    for variable in range(VARIABLES):
        weight = rng.standard_normal((modes, 1), dtype=np.float32) / np.float32(modes**0.5)
        maps[:, variable] = (season @ (weight * pattern)).reshape(DAYS, ROWS, COLUMNS)
    maps += rng.standard_normal((DAYS, VARIABLES, 1, COLUMNS), dtype=np.float32) * 0.1
    depth = np.tanh(pattern[0] * pattern[1]) + 0.5 * pattern[2]
    return maps, depth


class SurfaceSeries(Dataset):
    """All variables over the year at one place; a batch is fetched at once."""

    def __init__(self, maps, depth):
        self.maps = torch.from_numpy(maps.reshape(*maps.shape[:2], -1))
        self.depth = torch.from_numpy(depth)

    def __len__(self):
        return len(self.depth)

    def __getitems__(self, points):
        points = torch.tensor(points)
        series = self.maps[:, :, points].permute(2, 1, 0).contiguous()  # costs time
        return series, self.depth[points]


class DepthNet(lightning.LightningModule):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(VARIABLES, width, 9, stride=4, padding=4),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv1d(2 * width, 2 * width, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(8 * width, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, series):
        return self.body(series).squeeze(1)

    def training_step(self, batch, batch_idx):
        series, depth = batch
        return F.smooth_l1_loss(self(series), depth)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    lightning.seed_everything(21)
    loader = DataLoader(
        SurfaceSeries(*make_ocean()), batch_size=128, shuffle=True, drop_last=True, collate_fn=lambda batch: batch
    )
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DepthNet(), loader)


if __name__ == "__main__":
    main()
