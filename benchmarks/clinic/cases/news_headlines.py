"""Classifies news headlines with a bag of hashed words and bigrams. The mistake is that the large embedding table gets
dense gradients, so each step writes and updates all rows.
---
expect: PD322
half: tune
fix:
  ? 'mode="mean")'
  : 'mode="mean", sparse=True)'
"""

from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

BUCKETS = 150_000
TOKENS = 20
TOPICS = 8


class Headlines(Dataset):
    """Hashed n-gram ids of headlines; indexing with a tensor of rows returns a batch."""

    def __init__(self, num: int, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        self.topics = torch.randint(0, TOPICS, (num,), generator=gen)
        ranks = (BUCKETS ** torch.rand(num, TOKENS, generator=gen)).long() - 1
        topical = torch.rand(num, TOKENS, generator=gen) < 0.3
        shift = (self.topics * 7919)[:, None] * topical
        self.ids = (ranks * 31 + shift) % BUCKETS

    def __len__(self) -> int:
        return len(self.topics)

    def __getitem__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.ids[rows], self.topics[rows]


class ShuffledBatches(Sampler[torch.Tensor]):
    """Yields the row numbers of a whole shuffled batch at a time."""

    def __init__(self, num: int, batch_size: int) -> None:
        self.num = num
        self.batch_size = batch_size

    def __len__(self) -> int:
        return self.num // self.batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(self.num)[: len(self) * self.batch_size]
        yield from order.split(self.batch_size)


class HeadlineClassifier(L.LightningModule):
    def __init__(self, dim: int = 32, hidden: int = 256, lr: float = 0.05) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, dim, mode="mean")
        nn.init.normal_(self.bag.weight, std=0.1)
        self.head = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, hidden),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, TOPICS),
        )
        self.lr = lr

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(ids))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        ids, topics = batch
        loss = F.cross_entropy(self(ids), topics)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        ids, topics = batch
        accuracy = (self(ids).argmax(dim=1) == topics).float().mean()
        self.log("val_accuracy", accuracy, batch_size=len(topics))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(self.parameters(), lr=self.lr)


def main() -> None:
    L.seed_everything(29)
    train, val = Headlines(num=81_920, seed=29), Headlines(num=4096, seed=30)
    train_loader = DataLoader(train, sampler=ShuffledBatches(len(train), batch_size=512), batch_size=None)
    val_loader = DataLoader(val, sampler=torch.arange(len(val)).split(2048), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(HeadlineClassifier(), train_loader, val_loader)
    print(f"validation accuracy {trainer.callback_metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    main()
