"""Classifies images of line drawings that an orthogonal recurrent network reads row by row.
The orthogonal recurrence matrix is solved for again at every row although it is the same for the whole image.
---
expect: PD328
half: score
fix:
  ? "state = self.scan(inputs)  # costs time"
  : "with parametrize.cached(): state = self.scan(inputs)"
"""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize  # noqa: F401 - of the fix
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

EXTENT = 24
NUM_CLASSES = 8


class LineDrawings(Dataset):
    """Binary drawings of a thick line; the class is its direction."""

    def __init__(self, num_images: int) -> None:
        self.label = torch.randint(NUM_CLASSES, (num_images,))
        angle = (self.label + 0.6 * torch.rand(num_images)) * (3.14159 / NUM_CLASSES)
        axis = torch.linspace(-1, 1, EXTENT)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        shift = 0.4 * torch.randn(num_images, 1, 1)
        distance = torch.sin(angle)[:, None, None] * x - torch.cos(angle)[:, None, None] * y + shift
        self.images = (distance.abs() < 0.15).float() + 0.3 * torch.randn(num_images, EXTENT, EXTENT)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: list[int]) -> tuple[Tensor, Tensor]:
        return self.images[index], self.label[index]


class ModReLU(nn.Module):
    """Shifts the magnitude of its input by a learned bias and keeps the sign."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sign() * F.relu(inputs.abs() + self.bias)


class OrthogonalReader(nn.Module):
    """Recurrent network whose state is rotated by an orthogonal matrix before each new row is added."""

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        self.rows = nn.Sequential(
            nn.Linear(EXTENT, features), nn.GELU(), nn.Linear(features, features), nn.GELU(), nn.Linear(features, dim)
        )
        self.recurrence = orthogonal(nn.Linear(dim, dim, bias=False), orthogonal_map="cayley")
        self.activation = ModReLU(dim)
        self.classifier = nn.Sequential(nn.Linear(dim, features), nn.GELU(), nn.Linear(features, NUM_CLASSES))

    def scan(self, inputs: Tensor) -> Tensor:
        """The state after the last row of already embedded rows."""
        state = torch.zeros_like(inputs[:, 0])
        for row in inputs.unbind(1):
            state = self.activation(self.recurrence(state) + row)  # costs time
        return state

    def forward(self, images: Tensor) -> Tensor:
        inputs = self.rows(images)
        state = self.scan(inputs)  # costs time
        return self.classifier(state)


class RowClassifier(L.LightningModule):
    """Supervised training; the recurrence matrix learns at a lower rate than the rest."""

    def __init__(self, dim: int = 128, features: int = 256, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.reader = OrthogonalReader(dim, features)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, label = batch
        loss = F.cross_entropy(self.reader(images), label)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, label = batch
        self.log("val/loss", F.cross_entropy(self.reader(images), label), batch_size=len(label))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        slow = list(self.reader.recurrence.parameters())
        rest = [p for name, p in self.reader.named_parameters() if not name.startswith("recurrence")]
        groups = [{"params": rest}, {"params": slow, "lr": 0.1 * self.hparams.learning_rate}]
        return torch.optim.RMSprop(groups, lr=self.hparams.learning_rate, foreach=True)


def make_loader(drawings: Dataset, batch_size: int) -> DataLoader:
    sampler = BatchSampler(RandomSampler(drawings), batch_size=batch_size, drop_last=True)
    return DataLoader(drawings, sampler=sampler, batch_size=None)


def main() -> None:
    L.seed_everything(3)
    train, val = LineDrawings(num_images=128 * 80), LineDrawings(num_images=128 * 2)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(RowClassifier(), make_loader(train, 128), make_loader(val, 128))


if __name__ == "__main__":
    main()
