"""A residual convolutional network predicts the ownership of points on a board, and its time goes to computing a
curve metric over the epoch so far in every step.
---
expect:
- PD509
- PD605
fix:
  self.precision_curve.compute()): self.precision_curve, on_step=False, on_epoch=True)
half: score
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torchmetrics.classification import BinaryAveragePrecision

torch.set_num_threads(1)
SIZE = 9


def make_positions(n, seed=12):
    """Nine by nine boards with stones of both sides, and which points black will own in the end."""
    g = torch.Generator().manual_seed(seed)
    lean = F.interpolate(torch.randn(n, 1, 3, 3, generator=g), size=(SIZE, SIZE), mode="bicubic")
    draw = lean + 0.7 * torch.randn(n, 1, SIZE, SIZE, generator=g)
    placed = torch.rand(n, 1, SIZE, SIZE, generator=g) < 0.45
    black = ((draw > 0) & placed).float()
    white = ((draw <= 0) & placed).float()
    owner = F.avg_pool2d(black - white, 5, stride=1, padding=2) + 0.3 * (black - white)
    board = torch.cat([black, white, torch.ones_like(black)], dim=1)
    return TensorDataset(board, (owner[:, 0] > 0).long())


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.b(F.relu(self.a(x))))


class Ownership(L.LightningModule):
    def __init__(self, c=32, blocks=2):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, c, 3, padding=1),
            nn.ReLU(),
            *[Residual(c) for _ in range(blocks)],
            nn.Conv2d(c, 1, 1),
        )
        self.precision_curve = BinaryAveragePrecision()
        self.val_precision_curve = BinaryAveragePrecision()

    def forward(self, board):
        return self.net(board).squeeze(1)

    def training_step(self, batch, _):
        board, owner = batch
        logits = self(board)
        loss = F.binary_cross_entropy_with_logits(logits, owner.float())
        self.precision_curve.update(logits.detach().sigmoid(), owner)
        self.log("loss", loss)
        self.log("train_ap", self.precision_curve.compute())  # costs time
        return loss

    def on_train_epoch_start(self):
        self.precision_curve.reset()

    def validation_step(self, batch, _):
        board, owner = batch
        self.val_precision_curve.update(self(board).sigmoid(), owner)
        self.log("val_ap", self.val_precision_curve, on_epoch=True, batch_size=len(board))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def loader(data, size, shuffle):
    order = RandomSampler(data) if shuffle else range(len(data))
    return DataLoader(data, sampler=BatchSampler(order, size, drop_last=shuffle), batch_size=None)


def main():
    L.seed_everything(61)
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=5,
    )
    train = loader(make_positions(60 * 64), 64, True)
    trainer.fit(Ownership(), train, loader(make_positions(512, 13), 128, False))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
