"""Learns the surface speed of a glacier from slope, thickness, and climate with a deep residual network.
The gradient norm of each of the parameters is logged as a metric of its own at each step.
---
expect: [PD507, PD502]
half: score
fix:
  ? "self.log_dict(grad_norm(self.blocks, norm_type=2))  # costs time"
  : |-
    if (self.trainer.global_step + 1) % self.trainer.log_every_n_steps == 0:
                self.log_dict(grad_norm(self.blocks, norm_type=2))
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

FEATURES = 10
WIDTH = 96
BLOCKS = 16
MAX_STEPS = 210


def glacier_cells(cells: int, seed: int) -> TensorDataset:
    """Cells of a grid: a flow law gives the speed from slope and thickness; climate changes the softness of ice."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(cells, FEATURES, generator=generator)
    slope, thickness, warmth = features[:, 0], features[:, 1], features[:, 2]
    softness = torch.exp(1.5 * warmth - 0.5 * features[:, 3])
    deformation = softness * (slope * thickness).pow(3) * thickness
    sliding = 0.2 * slope * (features[:, 4] > 0.5) * features[:, 5:].mean(dim=1)
    noise = 0.01 * torch.randn(cells, generator=generator)
    return TensorDataset(features, deformation + sliding + noise)


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.outer(F.gelu(self.inner(self.norm(hidden))))


class GlacierModule(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.Sequential(*(ResidualBlock(WIDTH) for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        features, speed = batch
        predicted = self.head(self.blocks(self.lift(features))).squeeze(1)
        loss = F.mse_loss(predicted, speed)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.log_dict(grad_norm(self.blocks, norm_type=2))  # costs time

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


def main() -> None:
    L.seed_everything(42)
    dataset = glacier_cells(cells=40_000, seed=42)
    batches = BatchSampler(RandomSampler(dataset), batch_size=256, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        logger=CSVLogger(tempfile.mkdtemp(prefix="glacier_")),
        log_every_n_steps=50,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(GlacierModule(), loader)


if __name__ == "__main__":
    main()
