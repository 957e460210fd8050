"""Regression of a building's energy demand from a table of weather and usage columns with a residual MLP; the columns
come as float64 and the Trainer trains the whole net in double precision.
---
expect: PD315
half: score
fix:
  ? 'precision="64-true"'
  : 'precision="32-true"'
  ? "self.x = torch.from_numpy(features)"
  : "self.x = torch.from_numpy(features).float()"
  ? "self.y = torch.from_numpy(demand)"
  : "self.y = torch.from_numpy(demand).float()"
"""

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

N_FEATURES = 40


def read_table(rows=20_000):
    rng = np.random.default_rng(13)
    features = rng.normal(size=(rows, N_FEATURES))
    features[:, 0] = np.sin(np.arange(rows) * 2 * np.pi / 24)
    features[:, 1] = np.cos(np.arange(rows) * 2 * np.pi / 24)
    demand = 3 * features[:, 0] + np.abs(features[:, 2]) * features[:, 3] + 0.1 * rng.normal(size=rows)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    demand = (demand - demand.mean()) / demand.std()
    return features, demand


class EnergyDataset(Dataset):
    def __init__(self, features, demand):
        self.x = torch.from_numpy(features)
        self.y = torch.from_numpy(demand)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, rows):
        return self.x[rows], self.y[rows]


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.reduce = nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.reduce(F.relu(self.expand(self.norm(h))))


class DemandNet(LightningModule):
    def __init__(self, width=192, blocks=3):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(N_FEATURES, width), *[ResidualBlock(width) for _ in range(blocks)], nn.Linear(width, 1)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x).squeeze(1), y)
        self.log("train_mse", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(6)
    data = EnergyDataset(*read_table())
    loader = DataLoader(
        data, sampler=BatchSampler(RandomSampler(data), batch_size=256, drop_last=True), batch_size=None
    )
    trainer = Trainer(
        accelerator="cpu",
        precision="64-true",
        max_epochs=4,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(DemandNet(), loader)
