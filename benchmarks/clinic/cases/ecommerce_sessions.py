"""Item-to-item embeddings (item2vec with sampled negatives) from shopping sessions of a large catalog. The two tables
get dense gradients and a dense Adam.
---
expect: PD322
half: tune
fix:
  ? "self.centers = nn.Embedding(ITEMS, width)"
  : "self.centers = nn.Embedding(ITEMS, width, sparse=True)"
  ? "self.contexts = nn.Embedding(ITEMS, width)"
  : "self.contexts = nn.Embedding(ITEMS, width, sparse=True)"
  ? "return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)"
  : "return torch.optim.SparseAdam(self.parameters(), lr=self.lr)"
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

ITEMS, SESSIONS, SESSION_LENGTH, CATEGORIES = 200_000, 60_000, 8, 400
BATCH, STEPS_PER_EPOCH = 1024, 120


def make_sessions() -> Tensor:
    """Shoppers stay within one category; popular items come first within it."""
    generator = torch.Generator().manual_seed(51)
    category = torch.randint(0, CATEGORIES, (SESSIONS, 1), generator=generator)
    per_category = ITEMS // CATEGORIES
    rank = torch.rand(SESSIONS, SESSION_LENGTH, generator=generator).pow(3).mul(per_category).long()
    return category * per_category + rank


class PairStream(IterableDataset):
    """Batches of (item, neighbor in the session, negatives)."""

    def __init__(self, sessions: Tensor, negatives: int = 4) -> None:
        self.sessions = sessions
        self.negatives = negatives

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(STEPS_PER_EPOCH):
            rows = torch.randint(0, SESSIONS, (BATCH,))
            first = torch.randint(0, SESSION_LENGTH, (BATCH,))
            second = (first + torch.randint(1, SESSION_LENGTH, (BATCH,))) % SESSION_LENGTH
            negatives = torch.randint(0, ITEMS, (BATCH, self.negatives))
            contexts = torch.cat([self.sessions[rows, second].unsqueeze(1), negatives], dim=1)
            yield self.sessions[rows, first], contexts


class ItemVectors(LightningModule):
    """Skip-gram with negative sampling on items."""

    def __init__(self, width: int = 32, lr: float = 5e-2) -> None:
        super().__init__()
        self.lr = lr
        self.centers = nn.Embedding(ITEMS, width)
        self.contexts = nn.Embedding(ITEMS, width)
        nn.init.normal_(self.centers.weight, std=width**-0.5)
        nn.init.normal_(self.contexts.weight, std=width**-0.5)

    def forward(self, items: Tensor, contexts: Tensor) -> Tensor:
        return torch.einsum("bd,bkd->bk", self.centers(items), self.contexts(contexts))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        items, contexts = batch
        scores = self(items, contexts)
        targets = torch.zeros_like(scores)
        targets[:, 0] = 1.0
        loss = F.binary_cross_entropy_with_logits(scores, targets)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=BATCH)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(51)
    loader = DataLoader(PairStream(make_sessions()), batch_size=None)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ItemVectors(), loader)


if __name__ == "__main__":
    main()
