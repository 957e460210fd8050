"""Embeddings of shop offers are learned with a batch-hard triplet loss so that offers of the same product are close.
The sampler looks up the offers of each product it draws by searching all labels.
---
expect: PD511
fix:
  ? "        self.labels, self.per_batch, self.per_product = labels, per_batch, per_product"
  : |2-
            self.labels, self.per_batch, self.per_product = labels, per_batch, per_product
            self.members = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
  ? "                members = np.flatnonzero(self.labels == product)  # costs time"
  : "                members = self.members[product]"
half: score
"""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

FEATURES, PRODUCTS = 40, 4000


class ProductSampler(Sampler):
    """Batches of `per_batch` products with `per_product` offers of each."""

    def __init__(self, labels, per_batch, per_product, batches):
        self.labels, self.per_batch, self.per_product = labels, per_batch, per_product
        self.batches, self.rng = batches, np.random.default_rng(0)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for product in self.rng.choice(PRODUCTS, self.per_batch, replace=False):
                members = np.flatnonzero(self.labels == product)  # costs time
                batch.append(self.rng.choice(members, self.per_product, replace=False))
            yield np.concatenate(batch)


class OfferEncoder(L.LightningModule):
    def __init__(self, width=256, size=64, margin=0.2):
        super().__init__()
        self.margin = margin
        self.net = nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, size),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)

    def training_step(self, batch, batch_idx):
        x, label = batch
        z = self(x)
        distance = 1 - z @ z.T
        same = label[:, None] == label[None]
        farthest = distance.masked_fill(~same, -1.0).amax(dim=1)
        closest = distance.masked_fill(same, 3.0).amin(dim=1)
        loss = F.softplus((farthest - closest + self.margin) * 10).mean() / 10
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, label = batch
        z = self(x)
        nearest = (z @ z.T).fill_diagonal_(-2.0).argmax(dim=1)
        self.log("val_precision", (label[nearest] == label).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def make_offers(products, label, generator):
    noise = torch.randn(len(label), FEATURES, generator=generator)
    return TensorDataset(torch.tanh(products[label] + 0.7 * noise), label)


if __name__ == "__main__":
    L.seed_everything(2)
    generator = torch.Generator().manual_seed(2)
    products = torch.randn(PRODUCTS, FEATURES, generator=generator)
    label = torch.cat([torch.arange(PRODUCTS).repeat(8), torch.randint(0, PRODUCTS, (300_000,), generator=generator)])
    offers = make_offers(products, label, generator)
    test = make_offers(products, torch.arange(500).repeat(4), generator)
    sampler = ProductSampler(label.numpy(), per_batch=96, per_product=3, batches=130)
    train = DataLoader(offers, sampler=sampler, batch_size=None)
    val = DataLoader(test, batch_size=2000)
    trainer = L.Trainer(accelerator="cpu", max_epochs=5, logger=False, enable_checkpointing=False)
    trainer.fit(OfferEncoder(), train, val)
