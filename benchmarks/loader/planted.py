"""A small training on the CPU with one fault planted in its input pipeline.

    python benchmarks/loader/planted.py CAUSE [--doctor FOLDER]

With ``--doctor``, PerfDoctor probes the loader during training. Without it, the script does not import PerfDoctor; run
``lightning-perf data -- python benchmarks/loader/planted.py CAUSE``. ``tests/trainer/test_causes.py`` trains with the
same faults.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

N_FEATURES = 64
N_SAMPLES = 1024


class Samples(Dataset[Any]):
    """Return a small new tensor per sample; no fault."""

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), index / N_SAMPLES)


class SlowPython(Samples):
    """Compute in a Python loop."""

    def augment(self, index: int) -> float:
        total = 0.0
        for step in range(20_000):
            total += step * 0.5
        return total

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), self.augment(index) * 1e-9)


class SlowNative(Samples):
    """Compute in C."""

    def __init__(self) -> None:
        self.image = bytes(os.urandom(2000)) * 20

    def squeeze(self) -> int:
        return len(zlib.compress(self.image, 6))

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), self.squeeze() * 1e-6)


class Fields(Samples):
    """Return two hundred small tensors per sample, which cost nothing to create."""

    def __init__(self) -> None:
        self.fields = {f"field{n}": value for n, value in enumerate(torch.rand(200, 1))}

    def __getitem__(self, index: int) -> Any:
        return dict(self.fields)


class Storage(Samples):
    """Wait for storage."""

    def read(self) -> None:
        time.sleep(0.002)

    def __getitem__(self, index: int) -> Any:
        self.read()
        return super().__getitem__(index)


class Bursty(Samples):
    """Take 30 times as long for one sample in 32."""

    def read(self, index: int) -> None:
        time.sleep(0.03 if index % 32 == 7 else 0.001)

    def __getitem__(self, index: int) -> Any:
        self.read(index)
        return super().__getitem__(index)


class Growing(Samples):
    """Leak 128 KiB per sample."""

    def __init__(self) -> None:
        self.cache: list[bytearray] = []

    def __getitem__(self, index: int) -> Any:
        self.cache.append(bytearray(os.urandom(64)) * 2048)
        return super().__getitem__(index)


def pad(samples: list[torch.Tensor]) -> torch.Tensor:
    """Collate element by element, several times."""
    for _ in range(4):
        rows = []
        for sample in samples:
            row = []
            for value in sample:
                row.append(math.sin(float(value)))
            rows.append(row)
    return torch.tensor(rows)


class Cause(NamedTuple):
    """A planted fault.

    Attributes:
        code: The rule expected to report it; None for the healthy training.
        dataset: Function that creates the dataset.
        function: The function whose file and line should be named; None if no function is the cause.
        arguments: Arguments of the DataLoader.
        n_layers: Number of layers of the model, which sets the step time.
        n_epochs: Number of epochs needed for the fault to show.
    """

    code: str | None
    dataset: Callable[[], Any]
    function: Callable[..., Any] | None = None
    arguments: dict[str, Any] = {}
    n_layers: int = 1
    n_epochs: int = 1

    def loader(self) -> DataLoader[Any]:
        """Return the DataLoader with this fault."""
        arguments = {"batch_size": 16, "shuffle": True, **self.arguments}
        return DataLoader(self.dataset(), persistent_workers=arguments.get("num_workers", 0) > 0, **arguments)

    def module(self) -> LightningModule:
        """Return the model to train."""
        return Model(self.n_layers)


CAUSES = {
    "slow-python-transform": Cause("PD107", SlowPython, SlowPython.augment),
    "slow-native-transform": Cause("PD107", SlowNative, SlowNative.squeeze),
    "slow-collate": Cause("PD108", Samples, pad, {"collate_fn": pad}),
    "many-small-tensors": Cause("PD109", Fields, None, {"num_workers": 1}),
    "sleeping-storage": Cause("PD106", Storage, Storage.read),
    "tiny-data-with-workers": Cause("PD103", Samples, None, {"num_workers": 2, "batch_size": 4}),
    "per-sample-indexing": Cause(
        "PD110", lambda: TensorDataset(torch.rand(32 * N_SAMPLES, N_FEATURES)), None, {"batch_size": 512}, n_layers=0
    ),
    "bursty-samples": Cause("PD105", Bursty, None, {"num_workers": 2}),
    "memory-growth": Cause("PD113", Growing, None, {"num_workers": 1}, n_layers=100, n_epochs=3),
    "healthy": Cause(None, Samples, n_layers=100),
}


class Model(LightningModule):
    """A small network with one linear layer."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(N_FEATURES, 128 if n_layers < 2 else 2048)
        # No more linear layers: on a CPU with fast bf16 they would be a second fault.
        self.rest = nn.Sequential(*[nn.Tanh() for _ in range(n_layers)])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss of one step."""
        if isinstance(batch, dict):
            batch = torch.cat(list(batch.values()), dim=1)[:, :N_FEATURES]
        batch = batch[0] if isinstance(batch, list) else batch
        return self.rest(self.first(batch)).square().mean()

    def configure_optimizers(self) -> Any:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-5)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cause", choices=CAUSES)
    parser.add_argument("--doctor", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    callbacks: list[Any] = []
    if arguments.doctor is not None:
        from lightning_perf import PerfDoctor

        callbacks = [PerfDoctor(probe_data=True, out_dir=arguments.doctor, reports=["json"])]
    cause = CAUSES[arguments.cause]
    trainer = Trainer(
        max_epochs=cause.n_epochs,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(cause.module(), cause.loader())


if __name__ == "__main__":
    main()
