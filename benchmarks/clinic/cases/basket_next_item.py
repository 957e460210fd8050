"""Trains a GRU next-item recommender whose catalog embeddings of discontinued items stay as they were pretrained.
The gradient hook that protects those rows is registered again at every batch, so that the hooks pile up.
---
expect: PD611
half: tune
fix:
  ? "def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:"
  : "def on_fit_start(self) -> None:"
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CATALOG = 20000
SESSION = 24
BATCH_SIZE = 48


class ShoppingSessions(Dataset[Tensor]):
    """Fixed-length sessions of item numbers that walk through neighboring parts of the catalog."""

    def __init__(self, sessions: int) -> None:
        generator = torch.Generator().manual_seed(17)
        entry = torch.randint(0, CATALOG, (sessions, 1), generator=generator)
        moves = torch.randint(-20, 25, (sessions, SESSION), generator=generator)
        self.items = (entry + moves.cumsum(dim=1)) % CATALOG

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: list[int]) -> Tensor:
        return self.items[torch.tensor(index)]


def pretrained_item_vectors(width: int) -> Tensor:
    """Item vectors as a content model would give them."""
    angle = torch.arange(CATALOG)[:, None] / CATALOG * torch.arange(1, width + 1)
    return 0.1 * torch.cos(6.28 * angle)


class NextItemGRU(L.LightningModule):
    def __init__(self, width: int = 64, hidden: int = 192, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.items = nn.Embedding.from_pretrained(pretrained_item_vectors(width), freeze=False)
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.project = nn.Linear(hidden, width)
        available = torch.arange(CATALOG) % 5 != 0
        self.register_buffer("trainable_rows", available.float().unsqueeze(1))

    def keep_discontinued(self, grad: Tensor) -> Tensor:  # costs time
        return grad * self.trainable_rows  # costs time

    def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
        self.items.weight.register_hook(self.keep_discontinued)

    def forward(self, history: Tensor) -> Tensor:
        states, _ = self.gru(self.items(history))
        return self.project(states)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        history, following = batch[:, :-1], batch[:, 1:]
        queries = self(history).flatten(0, 1)
        candidates, labels = torch.unique(following, return_inverse=True)
        scores = queries @ self.items(candidates).T
        loss = F.cross_entropy(scores, labels.flatten())
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(17)
    sessions = ShoppingSessions(sessions=BATCH_SIZE * 110)
    sampler = BatchSampler(RandomSampler(sessions), batch_size=BATCH_SIZE, drop_last=True)
    loader = DataLoader(sessions, sampler=sampler, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=5.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(NextItemGRU(), loader)


if __name__ == "__main__":
    main()
