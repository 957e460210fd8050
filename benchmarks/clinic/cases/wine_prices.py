"""Predicts the logarithm of auction prices of wine from region, vintage, and tasting scores.
The rank correlation over all bottles of the epoch so far is computed at each training step.
---
expect: PD509
half: score
fix:
  ? 'self.log("train_rank", self.rank.compute())  # costs time'
  : 'self.log("train_rank", self.rank, on_step=False, on_epoch=True)'
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics import SpearmanCorrCoef

REGIONS = 120
GRAPES = 40
SCORES = 14
BATCH_SIZE = 512
MAX_EPOCHS = 5


def auction_lots(lots: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    region = torch.randint(0, REGIONS, (lots,), generator=generator)
    grape = torch.randint(0, GRAPES, (lots,), generator=generator)
    scores = torch.randn(lots, SCORES, generator=generator)
    age = torch.rand(lots, 1, generator=generator) * 4.0
    region_level = 0.8 * torch.randn(REGIONS, generator=generator)
    grape_level = 0.4 * torch.randn(GRAPES, generator=generator)
    taste = torch.randn(SCORES, generator=generator) / SCORES**0.5
    price = region_level[region] + grape_level[grape] + scores @ taste + 0.3 * age.squeeze(1).sqrt()
    price = price + 0.3 * torch.randn(lots, generator=generator)
    return TensorDataset(region, grape, torch.cat([scores, age], dim=1), price)


class PriceModule(L.LightningModule):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.region = nn.Embedding(REGIONS, 24)
        self.grape = nn.Embedding(GRAPES, 12)
        self.net = nn.Sequential(
            nn.Linear(24 + 12 + SCORES + 1, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        self.rank = SpearmanCorrCoef()

    def forward(self, region: torch.Tensor, grape: torch.Tensor, tasting: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([self.region(region), self.grape(grape), tasting], dim=1)).squeeze(1)

    def on_train_epoch_start(self) -> None:
        self.rank.reset()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        region, grape, tasting, price = batch
        predicted = self(region, grape, tasting)
        self.rank.update(predicted.detach(), price)
        self.log("train_rank", self.rank.compute())  # costs time
        return F.huber_loss(predicted, price)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3, fused=True)


def main() -> None:
    L.seed_everything(1961)
    dataset = auction_lots(lots=120 * BATCH_SIZE, seed=1961)
    batches = BatchSampler(RandomSampler(dataset), BATCH_SIZE, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(PriceModule(), loader)
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
