"""SimCLR pretraining of a 1-D conv encoder on accelerometer windows; the pairwise similarities of the NT-Xent loss come
from a broadcast cosine similarity.
---
expect: PD326
half: tune
fix:
  'sim = self.cosine(z.unsqueeze(1), z.unsqueeze(0)) / self.temperature  # costs time': |-
    z = F.normalize(z, dim=-1)
            sim = z @ z.T / self.temperature
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHANNELS, WINDOW = 3, 128


def make_windows(n=4480):
    gen = torch.Generator().manual_seed(0)
    t = torch.arange(WINDOW) / 50.0
    freq = 0.5 + 3 * torch.rand(n, CHANNELS, 1, generator=gen)
    amp = 0.3 + torch.rand(n, CHANNELS, 1, generator=gen)
    phase = 6.28 * torch.rand(n, CHANNELS, 1, generator=gen)
    return amp * torch.sin(6.28 * freq * t + phase) + 0.05 * torch.randn(n, CHANNELS, WINDOW, generator=gen)


def augment(x):
    scale = 1 + 0.2 * torch.randn(x.shape[0], CHANNELS, 1)
    shift = int(torch.randint(0, WINDOW, (1,)))
    return torch.roll(x * scale, shift, dims=-1) + 0.05 * torch.randn_like(x)


class NTXentLoss(nn.Module):
    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature
        self.cosine = nn.CosineSimilarity(dim=-1)

    def forward(self, z_i, z_j):
        n = z_i.shape[0]
        z = torch.cat([z_i, z_j])
        sim = self.cosine(z.unsqueeze(1), z.unsqueeze(0)) / self.temperature  # costs time
        sim.fill_diagonal_(float("-inf"))
        targets = torch.arange(2 * n, device=z.device).roll(n)
        return F.cross_entropy(sim, targets)


class SensorSimCLR(LightningModule):
    def __init__(self, width=32, proj_dim=48):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(CHANNELS, width, 8, stride=4, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, proj_dim))
        self.criterion = NTXentLoss()

    def training_step(self, batch, batch_idx):
        (x,) = batch
        views = torch.cat([augment(x), augment(x)])
        z_i, z_j = self.projector(self.encoder(views)).chunk(2)
        loss = self.criterion(z_i, z_j)
        self.log("nt_xent", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)


if __name__ == "__main__":
    seed_everything(5)
    loader = DataLoader(TensorDataset(make_windows()), batch_size=56, shuffle=True, drop_last=True)
    trainer = Trainer(
        accelerator="cpu", max_epochs=5, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(SensorSimCLR(), loader)
