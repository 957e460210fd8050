"""Semantic segmentation of point clouds of rooms with a PointNet, augmented by random rotations about the vertical axis
for a whole batch at once, validated once per epoch.
---
half: score
"""

import itertools
import math

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

ROOMS, VALIDATION_ROOMS, POINTS, BATCH = 1024, 64, 256, 16
LABELS = ("floor", "ceiling", "wall", "furniture")


def make_rooms(rooms: int, seed: int) -> TensorDataset:
    """Points on the faces of boxes, and clutter inside them; the label is the kind of surface."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(rooms, 1, 3, generator=generator) * torch.tensor([4.0, 4.0, 1.0]) + 2.0
    points = (torch.rand(rooms, POINTS, 3, generator=generator) - 0.5) * size
    labels = torch.randint(0, len(LABELS), (rooms, POINTS), generator=generator)
    half = (size / 2).expand_as(points)
    x, y, z = points.unbind(-1)
    z = torch.where(labels == 0, -half[..., 2], z)
    z = torch.where(labels == 1, half[..., 2], z)
    x = torch.where((labels == 2) & (y > 0), half[..., 0] * x.sign(), x)
    y = torch.where((labels == 2) & (y <= 0), -half[..., 1], y)
    furniture = (labels == 3).unsqueeze(-1)
    points = torch.where(furniture, points * 0.6, torch.stack([x, y, z], dim=-1))
    return TensorDataset(points + torch.randn(points.shape, generator=generator) * 0.02, labels)


def rotate_about_vertical(points: Tensor) -> Tensor:
    """One random angle per room."""
    angle = torch.rand(points.shape[0], device=points.device) * 2 * math.pi
    cos, sin = angle.cos(), angle.sin()
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    rotation = torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], dim=-1).view(-1, 3, 3)
    return points @ rotation


def shared_mlp(*widths: int) -> nn.Sequential:
    """The same layers for every point, on tensors of shape (rooms, points, features)."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class RoomSegmenter(LightningModule):
    """PointNet: features per point, a maximum over the room, labels per point."""

    def __init__(self, width: int = 64, lr: float = 2e-3) -> None:
        super().__init__()
        self.lr = lr
        self.local = shared_mlp(3, width, width)
        self.deep = shared_mlp(width, 2 * width)
        self.from_local = nn.Linear(width, width)
        self.from_room = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, len(LABELS))
        self.accuracy = MulticlassAccuracy(len(LABELS), average="micro", validate_args=False)

    def forward(self, points: Tensor) -> Tensor:
        local = self.local(points)
        room = self.deep(local).amax(dim=1)
        merged = self.from_local(local) + self.from_room(room).unsqueeze(1)
        return self.head(F.relu(merged))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        points, labels = batch
        logits = self(rotate_about_vertical(points))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        points, labels = batch
        self.accuracy.update(self(points).flatten(0, 1), labels.flatten())
        self.log("val_accuracy", self.accuracy, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, fused=True)


def main() -> None:
    seed_everything(91)
    train, validation = make_rooms(ROOMS, seed=91), make_rooms(VALIDATION_ROOMS, seed=92)
    train_loader = DataLoader(train, sampler=BatchSampler(RandomSampler(train), BATCH, True), batch_size=None)
    val_loader = DataLoader(
        validation, sampler=BatchSampler(SequentialSampler(validation), 2 * BATCH, False), batch_size=None
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=5,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RoomSegmenter(), train_loader, val_loader)
    print(f"validation accuracy {trainer.callback_metrics['val_accuracy']:.3f}")


if __name__ == "__main__":
    main()
