"""Run a small training on the CPU, without a performance problem unless a fault is planted in it."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from lightning_perf.doctor import PerfDoctor
from lightning_perf.probes.settings.machine import read_machine
from lightning_perf.records import Session

_BATCH_SIZE = 32
_CLASSES = 10
_CHANNELS = 8
_ROUNDS = 60


def run_demo(fault: str, out_dir: Path) -> Session:
    """Train with a planted fault, a key of ``cli.demo.FAULTS``; return the diagnosed session."""
    torch.manual_seed(0)
    _use_all_cores()
    doctor = PerfDoctor(out_dir=out_dir, probe_data=True)  # the run is too short for the probe to run by default
    short_epochs = fault == "no-persistent-workers"
    needs_decoder = fault in ("slow-transform", "no-persistent-workers")
    callbacks: list[Callback] = [doctor]
    flags: dict[str, Any] = {}
    if fault == "slow-callback":
        callbacks.append(WeightInspector())
    if fault == "frequent-checkpoints":
        callbacks.append(ModelCheckpoint(dirpath=out_dir / "checkpoints", every_n_train_steps=1))
    if fault == "logging-every-step":
        flags["log_every_n_steps"] = 1
    if fault == "slow-logger":
        flags["log_every_n_steps"] = 10
    if fault == "heavy-validation":
        flags["val_check_interval"] = 0.25
    logger_class = SlowLogger if fault == "slow-logger" else TensorBoardLogger
    trainer = Trainer(
        max_epochs=12 if short_epochs else 3,
        accelerator="cpu",
        callbacks=callbacks,
        logger=logger_class(save_dir=str(out_dir), name="logs", version=""),
        default_root_dir=str(out_dir),
        enable_progress_bar=False,
        enable_model_summary=False,
        **flags,
    )
    train = _loader(
        n_batches=12 if short_epochs else 48,
        decode_s=0.04 if needs_decoder else 0.0,
        num_workers=2 if short_epochs else 0,
    )
    # Not at every epoch where epochs are short: their boundary is the fault on show.
    validation = None if short_epochs else _loader(n_batches=24 if fault == "heavy-validation" else 2)
    model = SmallNet(
        n_metrics=150 if fault == "logging-every-step" else 1,
        n_kept=1_000_000 if fault == "frequent-checkpoints" else 0,
    )
    trainer.fit(model, train, validation)
    assert doctor.session is not None
    return doctor.session


def _use_all_cores() -> None:
    if "OMP_NUM_THREADS" in os.environ:  # set by the user: fewer threads than cores would be another fault
        torch.set_num_threads(int(read_machine().usable_cores))


class SmallNet(LightningModule):
    """Network of elementwise functions: about 20 ms per step on one core.

    It has so few weights and matrix multiplications that neither the optimizer nor the precision matters.

    Args:
        n_metrics: Number of metrics to log.
        n_kept: Elements of a buffer that only adds to the size of checkpoints.
    """

    def __init__(self, n_metrics: int = 1, n_kept: int = 0) -> None:
        super().__init__()
        self.n_metrics = n_metrics
        self.register_buffer("kept", torch.zeros(n_kept))
        self.network = nn.Sequential(
            Spread(_CHANNELS),
            nn.GELU(),
            nn.Softplus(),
            nn.GELU(),
            nn.Softplus(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(_CHANNELS * 16, _CLASSES),
        )

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch and log the metrics."""
        loss = self._loss(batch)
        for index in range(self.n_metrics):
            self.log(f"train_loss_{index}" if index else "train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        """Log the loss of a validation batch."""
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    def _loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(_smoothed(images)), labels)


class Spread(nn.Module):
    """Gray images times a learned factor per channel: elementwise, unlike a convolution."""

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.randn(n_channels, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images of shape (batch, colors, height, width) to (batch, channels, height, width)."""
        return images.mean(dim=1, keepdim=True) * self.factors


@torch.no_grad()
def _smoothed(images: torch.Tensor) -> torch.Tensor:
    """Spend a few milliseconds on in-place arithmetic of images with noise, which differ in each epoch."""
    smoothed = torch.rand_like(images).add_(images)
    for _ in range(_ROUNDS):  # several functions, as PD337 names one that takes most of the time
        smoothed.erf_()
        smoothed.sin_()
        smoothed.tanh_()
        smoothed.cos_()
    return smoothed


class Images(Dataset[Any]):
    """Random images in memory, fetched one batch per call, which waits ``decode_s`` as for slow storage."""

    def __init__(self, n_samples: int, decode_s: float) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(n_samples, 3, 32, 32, generator=generator)
        self.labels = torch.randint(0, _CLASSES, (n_samples,), generator=generator)
        self.decode_s = decode_s

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.decode_s:
            time.sleep(self.decode_s)
        return self.images[indices], self.labels[indices]


class WeightInspector(Callback):
    """Callback that spends 20 ms after each step."""

    def on_train_batch_end(self, *_: Any) -> None:
        """Wait for 20 ms."""
        time.sleep(0.02)


class SlowLogger(TensorBoardLogger):
    """A logger behind a slow connection."""

    def save(self) -> None:
        """Write after a delay of 200 ms."""
        time.sleep(0.2)
        super().save()


def _loader(n_batches: int, decode_s: float = 0.0, num_workers: int = 0) -> DataLoader[Any]:
    dataset = Images(n_batches * _BATCH_SIZE, decode_s)
    sampler = BatchSampler(RandomSampler(dataset), _BATCH_SIZE, drop_last=True)
    return DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=num_workers)
