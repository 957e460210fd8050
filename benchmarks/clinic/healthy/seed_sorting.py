"""Sorts images of seeds by species with a small convolution network; all images are in memory as one tensor.
---
half: score
"""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

SPECIES = 10
SIDE = 32
MAX_EPOCHS = 3


def seed_images(images: int, seed: int) -> TensorDataset:
    """Ellipses on a belt: axes, color, and texture depend on the species."""
    generator = torch.Generator().manual_seed(seed)
    species = torch.randint(0, SPECIES, (images,), generator=generator)
    axis = torch.linspace(-1.0, 1.0, SIDE)
    long_axis = torch.linspace(0.4, 0.9, SPECIES)[species].view(-1, 1, 1)
    short_axis = torch.linspace(0.7, 0.3, SPECIES)[species].view(-1, 1, 1)
    inside = (axis.view(1, -1, 1) / long_axis) ** 2 + (axis.view(1, 1, -1) / short_axis) ** 2 < 1.0
    color = torch.rand(SPECIES, 3, 1, 1, generator=generator)[species]
    noise = 0.4 * torch.randn(images, 3, SIDE, SIDE, generator=generator)
    pixels = inside.unsqueeze(1) * color + noise
    return TensorDataset(pixels.contiguous(memory_format=torch.channels_last), species)


def batched(dataset: TensorDataset, batch_size: int, train: bool) -> DataLoader:
    order = RandomSampler(dataset) if train else SequentialSampler(dataset)
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=train), batch_size=None)


def stage(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class SeedModule(L.LightningModule):
    def __init__(self, learning_rate: float = 0.05) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(
            stage(3, 32),
            stage(32, 64),
            stage(64, 96),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(96, SPECIES),
        ).to(memory_format=torch.channels_last)
        self.accuracy = MulticlassAccuracy(SPECIES)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, species = batch
        return F.cross_entropy(self.net(images), species)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, species = batch
        self.accuracy.update(self.net(images), species)
        self.log("val_accuracy", self.accuracy, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate, momentum=0.9, nesterov=True)


def main() -> None:
    L.seed_everything(10)
    train = batched(seed_images(4096, seed=10), batch_size=64, train=True)
    held_out = batched(seed_images(512, seed=11), batch_size=256, train=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=MAX_EPOCHS,
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(SeedModule(), train, held_out)
    print(f"accuracy: {trainer.callback_metrics['val_accuracy']:.3f}")


if __name__ == "__main__":
    main()
