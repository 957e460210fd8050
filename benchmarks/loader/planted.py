"""A small training on the CPU with one fault planted in its input pipeline.

    python benchmarks/loader/planted.py CAUSE [--doctor FOLDER]

With ``--doctor`` PerfDoctor probes the loader beside the training; without, the script knows nothing of PerfDoctor and
is what ``lightning-perf data -- python benchmarks/loader/planted.py CAUSE`` is given.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_FEATURES = 64
N_SAMPLES = 2048


class Cause(NamedTuple):
    """A planted fault.

    Attributes:
        code: The rule that should name it; None for the healthy training.
        function: The function that should be named with its file and line; None where none is to blame.
        num_workers: Of the loader.
        batch_size: Of the loader.
        n_layers: Of the model.
    """

    code: str | None
    function: str | None
    num_workers: int = 0
    batch_size: int = 16
    n_layers: int = 1


CAUSES = {
    "slow-python-transform": Cause("PD107", "augment"),
    "slow-native-transform": Cause("PD107", "squeeze"),
    "slow-collate": Cause("PD108", "pad"),
    "many-small-tensors": Cause("PD109", None, num_workers=1),
    "sleeping-storage": Cause("PD106", "read"),
    "tiny-data-with-workers": Cause("PD103", None, num_workers=2, batch_size=4, n_layers=0),
    "per-sample-indexing": Cause("PD110", None, batch_size=512),
    "bursty-samples": Cause("PD105", None, num_workers=2),
    "memory-growth": Cause("PD113", None, num_workers=1),
    "healthy": Cause(None, None, n_layers=40),
}


class Samples(Dataset[Any]):
    """Cheap samples, made anew."""

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), index / N_SAMPLES)


class SlowPython(Samples):
    def augment(self, index: int) -> float:
        total = 0.0
        for step in range(20_000):
            total += step * 0.5
        return total

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), self.augment(index) * 1e-9)


class SlowNative(Samples):
    def __init__(self) -> None:
        self.image = bytes(os.urandom(60_000))

    def squeeze(self) -> int:
        return len(zlib.compress(self.image, 6))

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), self.squeeze() * 1e-6)


class Fields(Samples):
    """Two hundred small tensors a sample."""

    def __getitem__(self, index: int) -> Any:
        return {f"field{n}": _FIELDS[n] for n in range(200)}


_FIELDS = list(torch.rand(200, 1))


class Storage(Samples):
    def read(self) -> None:
        time.sleep(0.002)

    def __getitem__(self, index: int) -> Any:
        self.read()
        return super().__getitem__(index)


class Rows(Samples):
    """Rows of a tensor in memory, one at a time."""

    def __init__(self) -> None:
        self.values = torch.rand(16 * N_SAMPLES, N_FEATURES)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


class Bursty(Samples):
    """One sample in 32 takes 30 times as long."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.015 if index % 32 == 7 else 0.0005)
        return super().__getitem__(index)


class Growing(Samples):
    """Keeps something of every sample."""

    def __init__(self) -> None:
        self.cache: list[bytearray] = []

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.0005)
        self.cache.append(bytearray(os.urandom(64)) * 2048)  # 128 KiB
        return super().__getitem__(index)


def pad(samples: list[torch.Tensor]) -> torch.Tensor:
    """Collates element by element."""
    rows = []
    for sample in samples:
        rows.append([sum(math.sin(float(value) + shift) for shift in range(8)) for value in sample])
    return torch.tensor(rows)


DATASETS: dict[str, type[Samples]] = {
    "slow-python-transform": SlowPython,
    "slow-native-transform": SlowNative,
    "many-small-tensors": Fields,
    "sleeping-storage": Storage,
    "per-sample-indexing": Rows,
    "bursty-samples": Bursty,
    "memory-growth": Growing,
}


class Model(LightningModule):
    """A small network; deep enough to keep a core busy for some milliseconds where nothing else should bind."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(N_FEATURES, 256)
        self.rest = nn.Sequential(*[nn.Linear(256, 256) for _ in range(n_layers)])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if isinstance(batch, dict):
            batch = torch.cat(list(batch.values()), dim=1)[:, :N_FEATURES]
        return self.rest(self.first(batch)).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cause", choices=CAUSES)
    parser.add_argument("--doctor", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    callbacks: list[Any] = []
    if arguments.doctor is not None:
        from lightning_perf import PerfDoctor

        callbacks = [PerfDoctor(probe_data=True, out_dir=arguments.doctor, reports=["json"])]
    cause = CAUSES[arguments.cause]
    loader = DataLoader(
        DATASETS.get(arguments.cause, Samples)(),
        batch_size=cause.batch_size,
        shuffle=True,
        num_workers=cause.num_workers,
        persistent_workers=cause.num_workers > 0,
        collate_fn=pad if arguments.cause == "slow-collate" else None,
    )
    trainer = Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(cause.n_layers), loader)


if __name__ == "__main__":
    main()
