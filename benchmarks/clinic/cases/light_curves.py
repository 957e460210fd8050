"""Classifies variable stars from folded light curves with a 1D residual net. The mistake is a callback that runs a
full Python garbage collection every few batches.
---
expect: [PD508, PD504]
half: score
fix:
  ? "MemoryGuard(every_n_batches=4)"
  : "MemoryGuard(every_n_batches=100)"
"""

import gc
import math
import resource

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = ("rr_lyrae", "cepheid", "eclipsing", "constant")


def make_light_curves(num: int, points: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return phase-folded magnitudes with their errors, shape (num, 2, points), and class labels."""
    gen = torch.Generator().manual_seed(seed)
    phase = torch.linspace(0, 1, points)
    shapes = torch.stack(
        [
            torch.exp(-4 * phase),
            torch.sin(2 * math.pi * phase),
            -torch.exp(-(((phase - 0.5) / 0.05) ** 2)),
            torch.zeros(points),
        ]
    )
    labels = torch.randint(0, len(CLASSES), (num,), generator=gen)
    amplitude = 0.2 + 0.6 * torch.rand(num, 1, generator=gen)
    errors = 0.1 + 0.2 * torch.rand(num, points, generator=gen)
    magnitudes = amplitude * shapes[labels] + errors * torch.randn(num, points, generator=gen)
    return torch.stack([magnitudes, errors], dim=1), labels


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 5, padding=2, bias=False)
        self.norm1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2, bias=False)
        self.norm2 = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(h)))


class StarClassifier(L.LightningModule):
    def __init__(self, width: int = 32, lr: float = 1e-3) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, width, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(ResidualBlock(width), ResidualBlock(width))
        self.head = nn.Linear(width, len(CLASSES))
        self.lr = lr

    def forward(self, curves: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(curves)).mean(dim=-1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        curves, labels = batch
        loss = F.cross_entropy(self(curves), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class MemoryGuard(L.Callback):
    """Keeps the resident memory low and remembers its peak."""

    def __init__(self, every_n_batches: int) -> None:
        self.every_n_batches = every_n_batches
        self.peak_mib = 0.0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (batch_idx + 1) % self.every_n_batches == 0:
            gc.collect()  # costs time
            self.peak_mib = max(self.peak_mib, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    L.seed_everything(3)
    curves, labels = make_light_curves(num=6400, points=256, seed=3)
    loader = DataLoader(TensorDataset(curves, labels), batch_size=64, shuffle=True, drop_last=True)
    guard = MemoryGuard(every_n_batches=4)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        callbacks=[guard],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(StarClassifier(), loader)
    print(f"train loss {trainer.callback_metrics['train_loss']:.4f}, peak memory {guard.peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
