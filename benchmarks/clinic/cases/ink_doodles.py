"""A recurrent network tells doodles apart by their pen movements, which were resampled to tensors beforehand.
Each batch also carries the raw ink of its doodles, as nested Python lists, "in case someone wants to plot it".
Lightning walks through whatever a batch holds to move its tensors: here through some ten thousand plain numbers.
---
expect: PD205
fix:
  '            "ink": [self.ink[i] for i in indices],  # costs time': '            "index": torch.as_tensor(indices),'
half: tune
"""

import math

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DOODLES = 3200
KINDS = 8
POINTS = 96
STEPS = 24
BATCH = 64


def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Closed curves with a number of petals that depends on the kind, in a shaky hand."""
    kinds = torch.randint(KINDS, (count,))
    angle = torch.linspace(0, 2 * math.pi, POINTS).expand(count, -1) + torch.rand(count, 1)
    petals = (kinds % 4 + 2)[:, None] * angle
    depth = torch.where(kinds < 4, 0.25, 0.6)[:, None]
    radius = 1.0 + depth * torch.cos(petals + 6.3 * torch.rand(count, 1))
    curve = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return curve + 0.02 * torch.randn_like(curve), kinds


class Doodles(Dataset):
    """Doodles as the tablet recorded them (ink) and as the network sees them (moves)."""

    def __init__(self, count: int):
        curves, self.kinds = draw(count)
        self.ink = curves.tolist()
        resampled = F.interpolate(curves.transpose(1, 2), size=STEPS + 1, mode="linear", align_corners=True)
        self.moves = (resampled.diff(dim=2) * 4.0).transpose(1, 2).contiguous()

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitems__(self, indices: list[int]):
        return {
            "moves": self.moves[indices],
            "kind": self.kinds[indices],
            "ink": [self.ink[i] for i in indices],  # costs time
        }


def as_is(batch):
    return batch


class DoodleClassifier(L.LightningModule):
    def __init__(self, width: int = 64, lr: float = 2e-3):
        super().__init__()
        self.lr = lr
        self.reader = nn.GRU(2, width, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, KINDS))

    def forward(self, moves: torch.Tensor) -> torch.Tensor:
        states, _ = self.reader(moves)
        return self.head(states.mean(dim=1))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch["moves"]), batch["kind"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    L.seed_everything(21)
    loader = DataLoader(
        Doodles(DOODLES),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=as_is,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=4,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DoodleClassifier(), loader)


if __name__ == "__main__":
    main()
