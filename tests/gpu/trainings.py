"""Five small trainings, each with one fault that only the device's side shows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader

SCHEDULE = (20, 3, 4, 1)
N_STEPS = 60


class Training(NamedTuple):
    """A training and the findings it must have.

    Attributes:
        module: Makes the module.
        n_features: Of a sample.
        batch_size: Samples of a batch.
        codes: Rules of which one has to name it.
        trainer: Arguments of its Trainer.
        loader: Arguments of its loader.
        device: Where its batches are made; on the device, they need no copy.
    """

    module: type[LightningModule]
    n_features: int
    batch_size: int
    codes: tuple[str, ...]
    trainer: dict[str, Any] = {}
    loader: dict[str, Any] = {}
    device: str = "cuda"


class _Trained(LightningModule):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class ManySmallKernels(_Trained):
    """Hundreds of layers on next to nothing: launches take longer than kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(200)))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.layers(batch).square().mean()


class LargeProducts(_Trained):
    """Matrix multiplication large enough to keep the device busy."""

    width = 4096

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(self.width, self.width) for _ in range(24)))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.layers(batch).square().mean()


class LargeBatches(_Trained):
    """Little work on much data from pageable memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (batch.mean() * self.weight).square()


class Synchronizing(_Trained):
    """Read a number on the host behind large products: the host could launch much else meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(2)))
        self.small = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(60)))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        products = self.large(batch)
        scale = 0.5 if self.norm_of(products.detach()) > 1e6 else 1.0
        return (products * scale).square().mean() + self.small(batch[:8, :32]).square().mean()

    def norm_of(self, batch: torch.Tensor) -> float:
        return batch.norm().item()


TRAININGS = {
    "launch-bound": Training(ManySmallKernels, 32, 8, ("PD303",), {"precision": "32-true"}),
    "compute-bound": Training(LargeProducts, 4096, 8192, ("PD317", "PD310"), {"precision": "bf16-mixed"}),
    "fp32-matmul": Training(LargeProducts, 4096, 2048, ("PD301",), {"precision": "32-true"}),
    "pageable-copy": Training(LargeBatches, 2_000_000, 8, ("PD201",), {"precision": "32-true"}, device="cpu"),
    "synchronizing": Training(Synchronizing, 4096, 4096, ("PD501",), {"precision": "32-true"}),
}


def loader_of(training: Training) -> DataLoader:
    """Its batches, a few of them over and over, so that making them costs next to nothing."""
    shape = (training.batch_size, training.n_features)
    batches = [torch.randn(shape, device=training.device) for _ in range(2)]
    return DataLoader(batches * (N_STEPS // 2), batch_size=None, **training.loader)
