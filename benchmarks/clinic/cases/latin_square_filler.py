"""A small transformer fills the blanked cells of Latin squares.
A callback, added while someone hunted for a memory leak, counts the living tensors after every fifth batch.
It walks through all objects that the garbage collector knows, several hundred thousand, to find a few hundred.
---
expect: PD504
fix:
  ? |2-
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx % 5 == 0:
                self.count()
  : |2-
        def on_train_epoch_end(self, trainer, pl_module):
            self.count()
half: score
"""

import gc

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIDE = 6
SQUARES = 6400
BATCH = 64
BLANK = SIDE


class LatinSquares(Dataset):
    """Latin squares with some of the cells blanked; the rows, columns and symbols of a cyclic square are shuffled."""

    def __init__(self, count: int):
        base = (torch.arange(SIDE)[:, None] + torch.arange(SIDE)[None, :]) % SIDE
        rows = torch.rand(count, SIDE).argsort(dim=1)
        columns = torch.rand(count, SIDE).argsort(dim=1)
        symbols = torch.rand(count, SIDE).argsort(dim=1)
        shuffled = base[rows[:, :, None], columns[:, None, :]].reshape(count, SIDE * SIDE)
        self.solutions = symbols.gather(1, shuffled)
        self.blanked = torch.rand(count, SIDE * SIDE) < 0.25

    def __len__(self) -> int:
        return len(self.solutions)

    def __getitems__(self, indices: list[int]):
        solutions = self.solutions[indices]
        blanked = self.blanked[indices]
        return solutions.masked_fill(blanked, BLANK), solutions.masked_fill(~blanked, -100)


def as_is(batch):
    return batch


class SquareFiller(L.LightningModule):
    def __init__(self, width: int = 48, layers: int = 2, lr: float = 1e-3):
        super().__init__()
        self.lr = lr
        self.symbol = nn.Embedding(SIDE + 1, width)
        self.row = nn.Parameter(torch.randn(SIDE, 1, width) * 0.5)
        self.column = nn.Parameter(torch.randn(1, SIDE, width) * 0.5)
        block = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(block, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, SIDE)

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        places = (self.row + self.column).flatten(0, 1)
        return self.head(self.encoder(self.symbol(cells) + places))

    def training_step(self, batch, batch_idx):
        cells, targets = batch
        return F.cross_entropy(self(cells).flatten(0, 1), targets.flatten(), ignore_index=-100)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


class TensorCensus(L.Callback):
    """Remembers the largest number of tensors alive at a time."""

    def __init__(self):
        self.most = 0

    def count(self):
        alive = sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())  # costs time
        self.most = max(self.most, alive)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 5 == 0:
            self.count()


def main() -> None:
    L.seed_everything(6)
    loader = DataLoader(
        LatinSquares(SQUARES),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=as_is,
    )
    census = TensorCensus()
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[census],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SquareFiller(), loader)
    print(f"most tensors alive: {census.most}")


if __name__ == "__main__":
    main()
