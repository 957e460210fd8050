r"""Contrastive learning (NT-Xent) of motion-sensor windows with two augmented views; after every batch a hook embeds
the same views once more to report alignment and uniformity.
---
expect: PD504
half: score
fix:
  ? "loss = nt_xent(z1, z2)"
  : "self.last = z1.detach(), z2.detach()\n        loss = nt_xent(z1, z2)"
  ? "z1, z2 = self(first), self(second)  # costs time"
  : "z1, z2 = self.last"
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SensorWindows(Dataset):
    def __init__(self, n, channels=6, length=128):
        t = torch.arange(length).float() / length
        frequency = torch.randint(1, 12, (n, channels, 1)).float()
        phase = torch.rand(n, channels, 1) * 6.28
        self.windows = torch.sin(6.28 * frequency * t + phase)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        return self.windows[i]


def two_views(rows):
    x = torch.stack(rows)
    first = x + 0.1 * torch.randn_like(x)
    second = x.roll(8, dims=-1) * (0.8 + 0.4 * torch.rand(len(x), x.shape[1], 1))
    return first, second


def nt_xent(a, b, temperature=0.2):
    z = torch.cat([a, b])
    similarity = (z @ z.T / temperature).fill_diagonal_(float("-inf"))
    partner = torch.arange(len(z)).roll(len(a))
    return F.cross_entropy(similarity, partner)


class SensorEncoder(LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(6, width, 7, padding=3),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.GroupNorm(4, width),
            nn.GELU(),
            nn.AvgPool1d(2),
            nn.Conv1d(width, 2 * width, 5, padding=2),
            nn.GroupNorm(4, 2 * width),
            nn.GELU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.project = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 32))

    def forward(self, x):
        return F.normalize(self.project(self.convs(x)), dim=-1)

    def training_step(self, batch, batch_idx):
        first, second = batch
        z1, z2 = self(first), self(second)
        loss = nt_xent(z1, z2)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        first, second = batch
        z1, z2 = self(first), self(second)  # costs time
        self.log("alignment", (z1 - z2).pow(2).sum(1).mean())
        self.log("uniformity", torch.pdist(z1).pow(2).mul(-2).exp().mean().log())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(8)
    loader = DataLoader(SensorWindows(960), batch_size=16, shuffle=True, collate_fn=two_views, drop_last=True)
    trainer = Trainer(
        max_epochs=5,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(SensorEncoder(), loader)
