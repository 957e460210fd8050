"""Metric learning of product embeddings with batch-hard triplets; the identity-balanced batch sampler scans the whole
label list for every class it draws.
---
expect: PD511
half: score
fix:
  ? "        self.classes = sorted(set(labels))"
  : |2-
            self.classes = sorted(set(labels))
            self.members = {c: [] for c in self.classes}
            for i, y in enumerate(labels):
                self.members[y].append(i)
  ? "                members = [i for i, y in enumerate(self.labels) if y == c]  # costs time"
  : "                members = self.members[c]"
"""

import random

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class IdentityBatchSampler(Sampler):
    """Batches of `num_ids` products with `num_views` views each."""

    def __init__(self, labels, num_ids, num_views, num_batches):
        self.labels = labels
        self.num_ids = num_ids
        self.num_views = num_views
        self.num_batches = num_batches
        self.classes = sorted(set(labels))

    def __iter__(self):
        for _ in range(self.num_batches):
            batch = []
            for c in random.sample(self.classes, self.num_ids):
                members = [i for i, y in enumerate(self.labels) if y == c]  # costs time
                batch.extend(random.sample(members, self.num_views))
            yield batch

    def __len__(self):
        return self.num_batches


class ProductEmbedder(LightningModule):
    def __init__(self, in_dim=384, width=768, out_dim=128, margin=0.2):
        super().__init__()
        self.margin = margin
        self.net = nn.Sequential(
            nn.Linear(in_dim, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, out_dim),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self(x)
        dist = 1 - z @ z.T
        same = y[:, None] == y[None, :]
        hardest_pos = dist.masked_fill(~same, -1).amax(dim=1)
        hardest_neg = dist.masked_fill(same, 3).amin(dim=1)
        return F.relu(hardest_pos - hardest_neg + self.margin).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=True)


def make_catalogue(num_items=20000, num_products=400, dim=384):
    y = torch.arange(num_items) % num_products
    centres = torch.randn(num_products, dim)
    x = centres[y] + 0.8 * torch.randn(num_items, dim)
    return x, y


if __name__ == "__main__":
    seed_everything(3)
    x, y = make_catalogue()
    sampler = IdentityBatchSampler(y.tolist(), num_ids=16, num_views=4, num_batches=150)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler)
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(ProductEmbedder(), loader)
