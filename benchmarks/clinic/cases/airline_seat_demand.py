"""Predicts whether a seat offer is booked from hashed route, fare and customer fields with a wide embedding table.
Each step touches a few thousand rows, but the gradient and the optimizer cover the whole table.
---
expect: PD322
fix:
  'nn.EmbeddingBag(BUCKETS, dim, mode="sum")': 'nn.EmbeddingBag(BUCKETS, dim, mode="sum", sparse=True)'
  'return torch.optim.Adagrad(self.parameters(), lr=self.lr, fused=True)': |2-
    return torch.optim.Adagrad(self.parameters(), lr=self.lr)
half: tune
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BUCKETS, FIELDS = 200_000, 14


def seat_offers(offers, seed):
    """Hashed fields of seat offers; some fields share values a lot, others hardly ever."""
    gen = torch.Generator().manual_seed(seed)
    spread = torch.logspace(1.0, 4.6, FIELDS)
    value = (torch.rand(offers, FIELDS, generator=gen) ** 2 * spread).long()
    field = torch.arange(FIELDS)
    hashed = (value * 2_654_435_761 + field * 40_503 + 17) % BUCKETS
    taste = torch.sin(value * 0.37 + field)
    booked = (taste[:, :6].sum(dim=1) + taste[:, 0] * taste[:, 1] > 0).float()
    return hashed, booked


class SeatDemand(L.LightningModule):
    def __init__(self, dim=32, lr=0.05):
        super().__init__()
        self.lr = lr
        self.fields = nn.EmbeddingBag(BUCKETS, dim, mode="sum")
        nn.init.normal_(self.fields.weight, std=0.05)
        self.tower = nn.Sequential(
            nn.Linear(dim, 192),
            nn.ReLU(),
            nn.Linear(192, 192),
            nn.ReLU(),
            nn.Linear(192, 1),
        )

    def forward(self, hashed):
        return self.tower(self.fields(hashed)).squeeze(1)

    def training_step(self, batch, batch_idx):
        hashed, booked = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self(hashed), booked)
        self.log("train_loss", loss, batch_size=len(booked))
        return loss

    def validation_step(self, batch, batch_idx):
        hashed, booked = batch
        hit = ((self(hashed) > 0) == booked.bool()).float().mean()
        self.log("val_accuracy", hit, batch_size=len(booked))

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=self.lr, fused=True)


def main():
    L.seed_everything(40)
    offers = TensorDataset(*seat_offers(76_800, seed=1))
    order = BatchSampler(RandomSampler(offers), 1024, drop_last=True)
    train = DataLoader(offers, sampler=order, batch_size=None)
    val = DataLoader(TensorDataset(*seat_offers(2048, seed=2)), batch_size=1024)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(SeatDemand(), train, val)
    metrics = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}
    print(metrics)


if __name__ == "__main__":
    main()
