"""A small residual network that learns to judge chess positions drawn by their weight in the archive, whose sampler
hands the whole table of probabilities to numpy for each batch.
---
expect: [PD511, PD107, PD101]
fix:
  "self.p = weights / weights.sum()": "self.cdf = np.cumsum(weights) / weights.sum()"
  "self.rng.choice(len(self.p), size=self.batch_size, p=self.p)": >-
    self.cdf.searchsorted(self.rng.random(self.batch_size), side="right")
half: score
"""

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

POSITIONS, PIECES = 600_000, 13


def archive(seed=5):
    """Boards as 64 piece codes, the score of the side to move (material and center), and how often it is met."""
    g = torch.Generator().manual_seed(seed)
    boards = torch.randint(0, PIECES, (POSITIONS, 64), generator=g, dtype=torch.uint8)
    boards[:, ::2] = 0  # half of the squares are empty
    value = torch.tensor([0, 1, 3, 3, 5, 9, 0, -1, -3, -3, -5, -9, 0], dtype=torch.float32)
    centre = torch.ones(64)
    centre[[27, 28, 35, 36]] = 2.0
    score = torch.empty(POSITIONS)
    for rows in torch.arange(POSITIONS).split(50_000):
        score[rows] = torch.tanh((value[boards[rows].int()] @ centre) / 12)
    met = torch.rand(POSITIONS, generator=g).pow(-0.5)
    return TensorDataset(boards, score), met.double().numpy()


class WeightedBatches(Sampler):
    """Batches of positions, each drawn with the probability that belongs to its weight."""

    def __init__(self, weights, batch_size, batches, seed=0):
        self.p = weights / weights.sum()
        self.batch_size = batch_size
        self.batches = batches
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            rows = self.rng.choice(len(self.p), size=self.batch_size, p=self.p)  # costs time
            yield torch.from_numpy(rows)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.norm(self.first(x)))))


class Evaluator(lightning.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.piece = nn.Embedding(PIECES, width)
        self.square = nn.Parameter(torch.zeros(64, width))
        self.tower = Block(width)
        self.head = nn.Linear(width * 64, 1)

    def forward(self, boards):
        x = self.piece(boards.int()) + self.square
        x = x.transpose(1, 2).reshape(len(boards), -1, 8, 8)
        return torch.tanh(self.head(self.tower(x).flatten(1))).squeeze(1)

    def training_step(self, batch, batch_idx):
        boards, score = batch
        return F.mse_loss(self(boards), score)

    def on_train_epoch_end(self):
        self.log("learning_rate", self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [optimizer], [scheduler]


if __name__ == "__main__":
    lightning.seed_everything(2, verbose=False)
    positions, met = archive()
    loader = DataLoader(positions, sampler=WeightedBatches(met, batch_size=128, batches=140), batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Evaluator(), loader)
