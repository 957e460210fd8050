"""Fills cloud gaps in sea surface temperature patches cut at random ocean positions of global monthly grids. The list
of ocean cells, from which the centre of a patch is drawn, is worked out from the full mask again for every patch.
---
expect: [PD107, PD101]
fix:
  ? |-
    self.shape = (PATCH, PATCH)
  : |-
    self.shape = (PATCH, PATCH)
            self.centres = np.argwhere(ocean[: N_LAT - PATCH, : N_LON - PATCH])
  ? |-
    centres = np.argwhere(self.ocean[: N_LAT - PATCH, : N_LON - PATCH])  # costs time
            row, col = centres[torch.randint(len(centres), ()).item()]
  : |-
    row, col = self.centres[torch.randint(len(self.centres), ()).item()]
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_LAT, N_LON, N_MONTHS, PATCH = 400, 800, 24, 32


def simulate_ocean(seed):
    """Smooth random continents, and temperatures with a meridional gradient and a few drifting waves."""
    rng = np.random.default_rng(seed)
    lat = np.linspace(-1.4, 1.4, N_LAT, dtype=np.float32)[:, None]
    lon = np.linspace(0, 2 * np.pi, N_LON, dtype=np.float32)[None]
    relief = np.zeros((N_LAT, N_LON), np.float32)
    for wave in range(1, 7):
        a, b, c = rng.uniform(0, 2 * np.pi, 3)
        relief += np.cos(wave * lon + a) * np.cos(wave * lat + b) * np.float32(np.cos(c) + 1.2) / wave
    ocean = relief < np.quantile(relief, 0.68)
    fields = np.empty((N_MONTHS, N_LAT, N_LON), np.float32)
    for month in range(N_MONTHS):
        fields[month] = np.cos(lat) + 0.2 * np.sin(lat) * np.float32(np.cos(month * 2 * np.pi / 12))
        for wave in (9, 17, 33):
            fields[month] += 0.1 * np.cos(wave * lon + 0.4 * month) * np.sin(wave * lat + 0.2 * month)
    fields += 0.02 * rng.standard_normal(fields.shape, np.float32)
    fields = (fields - fields.mean()) / fields.std()
    return fields * ocean, ocean


class OceanPatches(Dataset):
    """A patch with its observation mask (no land, no clouds) and the complete patch with its ocean mask."""

    def __init__(self, fields, ocean, n_patches):
        self.fields = fields
        self.ocean = ocean
        self.n_patches = n_patches
        self.shape = (PATCH, PATCH)

    def __len__(self):
        return self.n_patches

    def __getitem__(self, index):
        centres = np.argwhere(self.ocean[: N_LAT - PATCH, : N_LON - PATCH])  # costs time
        row, col = centres[torch.randint(len(centres), ()).item()]
        window = (slice(row, row + PATCH), slice(col, col + PATCH))
        target = torch.from_numpy(self.fields[index % N_MONTHS][window])
        valid = torch.from_numpy(self.ocean[window]).float()
        cloud = F.interpolate(torch.rand(1, 1, 5, 5), size=self.shape, mode="bilinear")[0, 0]
        seen = valid * (cloud < 0.55)
        return torch.stack([target * seen, seen, valid]), target


class GapFiller(L.LightningModule):
    def __init__(self, channels=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, channels, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=2, dilation=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=4, dilation=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 1, 1),
        )

    def training_step(self, batch, batch_idx):
        inputs, target = batch
        valid = inputs[:, 2]
        error = (self.net(inputs).squeeze(1) - target).square() * valid
        loss = error.sum() / valid.sum()
        self.log("train_mse", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main():
    L.seed_everything(17)
    fields, ocean = simulate_ocean(seed=12)
    loader = DataLoader(OceanPatches(fields, ocean, n_patches=2560), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(GapFiller(), loader)


if __name__ == "__main__":
    main()
