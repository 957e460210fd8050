"""Assigns fields of scanned tax forms to types with a small convolution network on crops of the fields.
A callback that watches the memory of the process runs the full garbage collector every few batches.
---
expect: [PD508, PD504]
half: tune
fix:
  ? "if (batch_idx + 1) % self.every == 0:"
  : "if trainer.is_last_batch:"
"""

import gc
import resource

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

FIELD_TYPES = 18
HEIGHT = 16
LENGTH = 64
MAX_STEPS = 180


class MemoryWatch(L.Callback):
    """Keeps the resident memory of long runs on the shared scanner host low and notes its peak."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.peak_kib = 0

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        if (batch_idx + 1) % self.every == 0:
            gc.collect()  # costs time
            self.peak_kib = max(self.peak_kib, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def field_crops(crops: int, seed: int) -> TensorDataset:
    """Crops with a faint print of the field type, some handwriting, and scanner noise."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, FIELD_TYPES, (crops,), generator=generator)
    print_of_kind = (torch.rand(FIELD_TYPES, 1, HEIGHT, LENGTH, generator=generator) < 0.2).float()
    ink = (torch.rand(crops, 1, HEIGHT, LENGTH, generator=generator) < 0.1).float()
    noise = 0.3 * torch.randn(crops, 1, HEIGHT, LENGTH, generator=generator)
    return TensorDataset((0.6 * print_of_kind[kinds] + ink + noise), kinds)


class FieldNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * (HEIGHT // 4) * (LENGTH // 4), FIELD_TYPES)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(crops))


class FieldModule(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = FieldNet()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        crops, kinds = batch
        return F.cross_entropy(self.net(crops), kinds)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main() -> None:
    L.seed_everything(1040)
    dataset = field_crops(crops=5120, seed=1040)
    batches = BatchSampler(RandomSampler(dataset), batch_size=64, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    watch = MemoryWatch(every=4)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=MAX_STEPS,
        callbacks=[watch],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(FieldModule(), loader)
    print(f"peak memory: {watch.peak_kib / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
