"""Predicts the next sea area of a ship from its identity, position, and course (AIS tracks).
The table of ship embeddings is large, a batch touches few of its rows, but the gradient is dense.
---
expect: PD322
half: score
fix:
  ? "self.ship = nn.Embedding(SHIPS, width)"
  : "self.ship = nn.Embedding(SHIPS, width, sparse=True)"
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

SHIPS = 80_000
AREAS = 96
MOTION = 6
MAX_STEPS = 400


def ais_reports(reports: int, seed: int) -> TensorDataset:
    """Position, speed, and course of a ship, and the area where it is found a day later."""
    generator = torch.Generator().manual_seed(seed)
    ship = torch.randint(0, SHIPS, (reports,), generator=generator)
    place = torch.rand(reports, 2, generator=generator)
    course = torch.rand(reports, generator=generator) * 2.0 * torch.pi
    speed = torch.rand(reports, generator=generator) * 0.3
    draught = torch.rand(reports, generator=generator)
    ahead = (place + torch.stack([course.cos(), course.sin()], dim=1) * speed.unsqueeze(1)) % 1.0
    row, column = (ahead[:, 0] * 8).long(), (ahead[:, 1] * 12).long()
    motion = torch.cat([place, torch.stack([course.cos(), course.sin(), speed, draught], dim=1)], dim=1)
    return TensorDataset(ship, motion, (row * 12 + column).clamp(max=AREAS - 1))


class NextAreaNet(nn.Module):
    def __init__(self, width: int = 32, hidden: int = 512) -> None:
        super().__init__()
        self.ship = nn.Embedding(SHIPS, width)
        self.net = nn.Sequential(
            nn.Linear(width + MOTION, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, AREAS),
        )

    def forward(self, ship: torch.Tensor, motion: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([self.ship(ship), motion], dim=1))


class NextAreaModule(L.LightningModule):
    def __init__(self, learning_rate: float = 0.02) -> None:
        super().__init__()
        self.net = NextAreaNet()
        self.learning_rate = learning_rate

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        ship, motion, area = batch
        return F.cross_entropy(self.net(ship, motion), area)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(self.parameters(), lr=self.learning_rate)


def main() -> None:
    L.seed_everything(1)
    dataset = ais_reports(reports=200_000, seed=1)
    batches = BatchSampler(RandomSampler(dataset), batch_size=256, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(NextAreaModule(), loader)


if __name__ == "__main__":
    main()
