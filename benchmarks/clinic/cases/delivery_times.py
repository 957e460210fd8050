"""Predicts delivery times of parcels from hashed words of the address and route features (synthetic orders), with
Adagrad. The table of 131072 hashed words gets a dense gradient, so every step fills, reads and updates all rows
although a batch touches a few thousand; with sparse=True Adagrad computes the same and touches only those rows.
---
expect: PD322
fix:
  ? |2-
            self.address = nn.EmbeddingBag(BUCKETS, width, mode="mean")  # costs time
  : |2-
            self.address = nn.EmbeddingBag(BUCKETS, width, mode="mean", sparse=True)
half: score
"""

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

BUCKETS = 2**17
WORDS = 10
ROUTE_FEATURES = 24


class ParcelOrders(Dataset):
    """Orders with the hashed words of the address, route features, and the delivery time in hours."""

    def __init__(self, n_orders, seed):
        gen = torch.Generator().manual_seed(seed)
        popularity = torch.rand(n_orders, WORDS, generator=gen) ** 3
        self.words = (popularity * BUCKETS).long().mul_(40503).remainder_(BUCKETS)
        self.route = torch.randn(n_orders, ROUTE_FEATURES, generator=gen)
        district = (self.words % 97).float().mean(dim=1) / 97
        distance = self.route[:, :4].pow(2).sum(dim=1)
        self.hours = 12 + 20 * district + 3 * distance + torch.randn(n_orders, generator=gen)

    def __len__(self):
        return len(self.hours)

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.words[indices], self.route[indices], self.hours[indices]


class DeliveryNet(nn.Module):
    def __init__(self, width=24, hidden=384):
        super().__init__()
        self.address = nn.EmbeddingBag(BUCKETS, width, mode="mean")  # costs time
        self.regressor = nn.Sequential(
            nn.Linear(width + ROUTE_FEATURES, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )
        nn.init.normal_(self.address.weight, std=0.05)

    def forward(self, words, route):
        features = torch.cat([self.address(words), route], dim=1)
        return self.regressor(features).squeeze(1)


class DeliveryTimeModel(L.LightningModule):
    def __init__(self, lr=0.02):
        super().__init__()
        self.lr = lr
        self.net = DeliveryNet()
        self.register_buffer("typical_hours", torch.tensor(30.0))

    def forward(self, words, route):
        return self.typical_hours + 10 * self.net(words, route)

    def training_step(self, batch, batch_idx):
        words, route, hours = batch
        loss = F.smooth_l1_loss(self(words, route), hours, beta=2.0)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(hours))
        return loss

    def validation_step(self, batch, batch_idx):
        words, route, hours = batch
        self.log("val_error_hours", F.l1_loss(self(words, route), hours), batch_size=len(hours))

    def configure_optimizers(self):
        optimizer = torch.optim.Adagrad(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main():
    L.seed_everything(31)
    train = DataLoader(ParcelOrders(102400, seed=1), batch_size=512, shuffle=True, drop_last=True, collate_fn=tuple)
    val = DataLoader(ParcelOrders(4096, seed=2), batch_size=1024, collate_fn=tuple)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(DeliveryTimeModel(), train, val)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
