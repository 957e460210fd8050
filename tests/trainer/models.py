"""Tiny models and data for real Trainers in these tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

BATCH_SIZE = 2
N_FEATURES = 4


class Sleeps:
    """Sleeps on demand and writes down when each sleep really began and ended: a loaded machine sleeps longer."""

    now_ns = staticmethod(time.perf_counter_ns)
    sleep = staticmethod(time.sleep)

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.taken_ns: list[tuple[int, int]] = []

    def __call__(self, place: str) -> None:
        """Sleep for the configured time of ``place``, if any."""
        if place in self.seconds:
            begin = self.now_ns()
            self.sleep(self.seconds[place])
            self.taken_ns.append((begin, self.now_ns()))


NO_SLEEPS = Sleeps()


class Samples(Dataset):
    """Samples of given content; getting the first of a batch sleeps."""

    def __init__(self, n: int = 16, sleeps: Sleeps = NO_SLEEPS) -> None:
        self.n = n
        self.sleeps = sleeps

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % BATCH_SIZE == 0:
            self.sleeps("fetch")
        return torch.full((N_FEATURES,), float(index % 5))


class Stream(IterableDataset):
    """The same without a length."""

    def __init__(self, n: int = 16, sleeps: Sleeps = NO_SLEEPS) -> None:
        self.samples = Samples(n, sleeps)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.samples[i] for i in range(self.samples.n))


def loader(n_batches: int = 8, sleeps: Sleeps = NO_SLEEPS, **arguments: Any) -> DataLoader:
    """A loader of ``n_batches`` batches."""
    return DataLoader(Samples(n_batches * BATCH_SIZE, sleeps), batch_size=BATCH_SIZE, **arguments)


def unsized_loader(n_batches: int = 8, sleeps: Sleeps = NO_SLEEPS) -> DataLoader:
    """Return a loader of unknown length."""
    return DataLoader(Stream(n_batches * BATCH_SIZE, sleeps), batch_size=BATCH_SIZE)


class SleepyBackward(torch.autograd.Function):
    """Does nothing forward and sleeps backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sleeps: Sleeps) -> torch.Tensor:
        ctx.sleeps = sleeps
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.sleeps("backward")
        return gradient, None


class SleepySGD(torch.optim.SGD):
    """Sleeps in each step."""

    sleeps: Sleeps = NO_SLEEPS

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.sleeps("optimizer")
        return result


class Tiny(LightningModule):
    """One linear layer; each of its parts can be made to sleep."""

    def __init__(self, sleeps: Sleeps = NO_SLEEPS) -> None:
        super().__init__()
        self.layer = nn.Linear(N_FEATURES, 1)
        self.sleeps = sleeps

    def loss(self, batch: Any) -> torch.Tensor:
        batch = batch["x"] if isinstance(batch, dict) else batch
        loss = self.layer(batch).square().mean()
        return SleepyBackward.apply(loss, self.sleeps)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, batch_size=BATCH_SIZE)
        self.sleeps("forward")  # last: after a sleep caches are cold, which would make the rest longer than without
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.sleeps("validation")
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.sleeps("test")
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.sleeps("predict")
        return self.layer(batch)

    def configure_optimizers(self) -> Any:
        optimizer = SleepySGD(self.parameters(), lr=0.01)
        optimizer.sleeps = self.sleeps
        return optimizer


class Manual(Tiny):
    """Steps its optimizers itself."""

    def __init__(self, sleeps: Sleeps = NO_SLEEPS, n_optimizers: int = 1, is_raw: bool = False) -> None:
        super().__init__(sleeps)
        self.automatic_optimization = False
        self.n_optimizers = n_optimizers
        self.is_raw = is_raw

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers(use_pl_optimizer=not self.is_raw)
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.sleeps("forward")

    def configure_optimizers(self) -> Any:
        return [super(Manual, self).configure_optimizers() for _ in range(self.n_optimizers)]


class FetchesItself(Tiny):
    """Takes the loader's iterator instead of a batch."""

    def training_step(self, dataloader_iter: Iterator[Any]) -> Any:
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)
