"""Trains a small residual policy and value network on synthetic chess-like positions kept in memory as planes. Healthy:
batches are gathered with one index operation, validation runs once per epoch, and the optimizer is fused.
---
half: score
"""

from collections.abc import Iterator

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics.classification import MulticlassAccuracy

PIECES = 12
SQUARES = 64


class Positions(Dataset):
    """Board planes with the target square of the best move and the game result; rows are fetched in batches."""

    def __init__(self, num: int, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        occupied = torch.rand(num, SQUARES, generator=gen) < 0.35
        piece = torch.randint(0, PIECES, (num, SQUARES), generator=gen)
        planes = torch.zeros(num, PIECES + 1, SQUARES).scatter_(1, piece[:, None], 1.0)[:, :PIECES]
        self.planes = (planes * occupied[:, None]).view(num, PIECES, 8, 8)
        worth = torch.tensor([1.0, 3.0, 3.0, 5.0, 9.0, 0.0, -1.0, -3.0, -3.0, -5.0, -9.0, 0.0])
        per_square = (worth[piece] * occupied).view(num, 1, 8, 8)
        attacked = F.avg_pool2d(per_square, 3, stride=1, padding=1).flatten(1)
        self.moves = attacked.argmin(dim=1)
        self.results = torch.tanh(per_square.flatten(1).sum(dim=1) / 20)

    def __len__(self) -> int:
        return len(self.moves)

    def __getitem__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.planes[rows], self.moves[rows], self.results[rows]


class BatchRows(Sampler[torch.Tensor]):
    """Yields the row numbers of one batch at a time, shuffled on request."""

    def __init__(self, num: int, batch_size: int, shuffle: bool) -> None:
        self.num = num
        self.batch_size = batch_size
        self.shuffle = shuffle

    def __len__(self) -> int:
        return self.num // self.batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = torch.randperm(self.num) if self.shuffle else torch.arange(self.num)
        yield from order[: len(self) * self.batch_size].split(self.batch_size)


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.body(x))


class ChessNet(L.LightningModule):
    def __init__(self, width: int = 32, depth: int = 2, lr: float = 2e-3) -> None:
        super().__init__()
        stem = nn.Conv2d(PIECES, width, 3, padding=1)
        self.trunk = nn.Sequential(stem, nn.ReLU(inplace=True), *(ResidualBlock(width) for _ in range(depth)))
        self.policy = nn.Sequential(nn.Conv2d(width, 1, 1), nn.Flatten())
        self.value = nn.Sequential(nn.Conv2d(width, 4, 1), nn.Flatten(), nn.Linear(4 * SQUARES, 1), nn.Tanh())
        self.val_accuracy = MulticlassAccuracy(num_classes=SQUARES, average="micro", validate_args=False)
        self.lr = lr

    def forward(self, planes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.trunk(planes)
        return self.policy(features), self.value(features).squeeze(1)

    def training_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> torch.Tensor:
        planes, moves, results = batch
        policy, value = self(planes)
        return F.cross_entropy(policy, moves) + F.mse_loss(value, results)

    def validation_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> None:
        planes, moves, _ = batch
        policy, _ = self(planes)
        self.val_accuracy.update(policy, moves)
        self.log("val_accuracy", self.val_accuracy, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-3, fused=True)


def main() -> None:
    L.seed_everything(64)
    train, val = Positions(num=9600, seed=64), Positions(num=1024, seed=65)
    train_loader = DataLoader(train, sampler=BatchRows(len(train), 128, shuffle=True), batch_size=None)
    val_loader = DataLoader(val, sampler=BatchRows(len(val), 256, shuffle=False), batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ChessNet(), train_loader, val_loader)
    print(f"validation accuracy {trainer.callback_metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    main()
