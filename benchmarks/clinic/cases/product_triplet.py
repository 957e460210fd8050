"""Product-photo retrieval with a small ConvNet and a batch-hard triplet loss, whose hardest positives and negatives are
mined in a Python loop over the anchors.
---
expect: PD304
half: score
fix:
  ? |-
    hardest_pos, hardest_neg = [], []
            for i in range(len(dist)):
                hardest_pos.append(dist[i][same[i]].max().unsqueeze(0))  # costs time
                hardest_neg.append(dist[i][~same[i]].min().unsqueeze(0))  # costs time
            hardest_pos = torch.cat(hardest_pos)
            hardest_neg = torch.cat(hardest_neg)
  : |-
    hardest_pos = dist.masked_fill(~same, float("-inf")).max(dim=1).values
            hardest_neg = dist.masked_fill(same, float("inf")).min(dim=1).values
"""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

PRODUCTS_PER_BATCH = 16
PHOTOS_PER_PRODUCT = 4


def make_photos(n_products=120, shots=10, size=24):
    gen = torch.Generator().manual_seed(9)
    base = torch.randn(n_products, 1, 3, size, size, generator=gen)
    photos = base + 3.0 * torch.randn(n_products, shots, 3, size, size, generator=gen)
    labels = torch.arange(n_products).repeat_interleave(shots)
    return TensorDataset(photos.flatten(0, 1), labels)


class PKSampler(Sampler):
    """Batches of P products with K photos each."""

    def __init__(self, labels, p, k, n_batches):
        self.groups = [torch.nonzero(labels == c).flatten() for c in labels.unique()]
        self.p, self.k, self.n_batches = p, k, n_batches

    def __len__(self):
        return self.n_batches

    def __iter__(self):
        for _ in range(self.n_batches):
            chosen = torch.randperm(len(self.groups))[: self.p].tolist()
            picks = [self.groups[c][torch.randperm(len(self.groups[c]))[: self.k]] for c in chosen]
            yield torch.cat(picks).tolist()


class TripletLoss(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.ranking = nn.MarginRankingLoss(margin=margin)

    def forward(self, embeddings, labels):
        similarity = embeddings @ embeddings.t()
        dist = (2 - 2 * similarity).clamp(min=1e-8).sqrt()
        same = labels[:, None] == labels[None, :]
        hardest_pos, hardest_neg = [], []
        for i in range(len(dist)):
            hardest_pos.append(dist[i][same[i]].max().unsqueeze(0))  # costs time
            hardest_neg.append(dist[i][~same[i]].min().unsqueeze(0))  # costs time
        hardest_pos = torch.cat(hardest_pos)
        hardest_neg = torch.cat(hardest_neg)
        return self.ranking(hardest_neg, hardest_pos, torch.ones_like(hardest_pos))


class PhotoEmbedder(LightningModule):
    def __init__(self, dim=64):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(128, dim),
        )
        self.criterion = TripletLoss()

    def training_step(self, batch, batch_idx):
        photos, labels = batch
        embeddings = F.normalize(self.backbone(photos), dim=1)
        loss = self.criterion(embeddings, labels)
        self.log("triplet_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=True)


if __name__ == "__main__":
    seed_everything(1)
    data = make_photos()
    sampler = PKSampler(data.tensors[1], PRODUCTS_PER_BATCH, PHOTOS_PER_PRODUCT, n_batches=140)
    loader = DataLoader(data, batch_sampler=sampler)
    trainer = Trainer(
        accelerator="cpu", max_epochs=4, enable_progress_bar=False, enable_checkpointing=False, logger=False
    )
    trainer.fit(PhotoEmbedder(), loader)
