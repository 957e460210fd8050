"""A fault planted in the input pipeline of a fit is the first finding on its data, functions with file and line."""

from __future__ import annotations

import math
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_perf import PerfDoctor
from lightning_perf.probes import recorder
from lightning_perf.probes.loader import LoaderProber
from lightning_perf.records import Finding, Session

from .conftest import Make

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux"),
    pytest.mark.alone,
]

N_FEATURES = 64
N_SAMPLES = 1024
BATCH_SIZE = 16


class Samples(Dataset):
    """Healthy: a small tensor made anew."""

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), index / N_SAMPLES)


class SlowPython(Samples):
    def augment(self, index: int) -> float:
        total = 0.0
        for step in range(12_000):
            total += step * 0.5
        return total

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), self.augment(index) * 1e-9)


class SlowNative(Samples):
    def __init__(self) -> None:
        self.image = bytes(os.urandom(2000)) * 20

    def squeeze(self) -> int:
        return len(zlib.compress(self.image, 6))

    def __getitem__(self, index: int) -> Any:
        return torch.full((N_FEATURES,), self.squeeze() * 1e-6)


class Fields(Samples):
    """Two hundred small tensors a sample, which cost nothing to make."""

    def __init__(self) -> None:
        self.fields = list(torch.rand(200, 1))

    def __getitem__(self, index: int) -> Any:
        return {f"field{n}": field for n, field in enumerate(self.fields)}


class Storage(Samples):
    def read(self) -> None:
        time.sleep(0.002)

    def __getitem__(self, index: int) -> Any:
        self.read()
        return super().__getitem__(index)


class Bursty(Samples):
    """One sample in 32 takes 30 times as long."""

    def read(self, index: int) -> None:
        time.sleep(0.03 if index % 32 == 7 else 0.001)

    def __getitem__(self, index: int) -> Any:
        self.read(index)
        return super().__getitem__(index)


class Growing(Samples):
    """Keeps 128 KiB of every sample."""

    def __init__(self) -> None:
        self.cache: list[bytearray] = []

    def __getitem__(self, index: int) -> Any:
        self.cache.append(bytearray(os.urandom(64)) * 2048)
        return super().__getitem__(index)


def pad(samples: list[torch.Tensor]) -> torch.Tensor:
    """Collates element by element, several times."""
    for _ in range(4):
        rows = []
        for sample in samples:
            row = []
            for value in sample:
                row.append(math.sin(float(value)))
            rows.append(row)
    return torch.tensor(rows)


class Net(LightningModule):
    """As deep as the fault needs its steps to be long."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(N_FEATURES, 128)
        self.rest = nn.Sequential(*[nn.Linear(128, 128) for _ in range(n_layers)])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if isinstance(batch, dict):
            batch = torch.cat(list(batch.values()), dim=1)[:, :N_FEATURES]
        batch = batch[0] if isinstance(batch, list) else batch
        return self.rest(self.first(batch)).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-5)


@pytest.fixture(autouse=True)
def _short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(**arguments: Any) -> LoaderProber:
        return LoaderProber(5.0, **arguments)

    monkeypatch.setattr(recorder, "LoaderProber", short)


def fitted(make_trainer: Make, dataset: Any, n_layers: int = 1, **arguments: Any) -> Session:
    """The session of a fit whose loader is probed once its epoch has waited."""
    doctor = PerfDoctor(probe_data=True, reports=[])
    loader = DataLoader(dataset, **{"batch_size": BATCH_SIZE, "shuffle": True, **arguments})
    make_trainer(doctor).fit(Net(n_layers), loader)
    assert doctor.session is not None
    assert doctor.session.probes_off == ()
    return doctor.session


def first_of(session: Session, code: str) -> Finding:
    """The finding of this rule, which has to be the first one on the data."""
    told = [(f.code, f.severity, f.summary) for f in session.findings]
    # PD102 without workers says, rightly, that other programs hold the cores of the machine that tests run on.
    first = next(
        (f for f in session.findings if f.category == "data" and f.severity != "info" and f.code != "PD102"), None
    )
    assert first is not None, (told, session.loader_probe)
    assert first.code == code, (told, session.loader_probe)
    return first


def place_of(function: Any) -> str:
    return f"{Path(__file__).name}:{function.__code__.co_firstlineno}"


@pytest.mark.parametrize("dataset", [SlowPython(), SlowNative()], ids=["python", "native"])
def test_slow_transform_is_named_with_its_line(make_trainer: Make, dataset: Any) -> None:
    session = fitted(make_trainer, dataset)
    function = SlowPython.augment if isinstance(dataset, SlowPython) else SlowNative.squeeze
    assert place_of(function) in first_of(session, "PD107").summary
    # The quick way out stands beside it, with a number of workers that leaves no core over-used.
    starved = next(finding for finding in session.findings if finding.code == "PD101")
    workers = starved.prescriptions[0].loader_args.get("num_workers", 0)
    assert workers <= session.machine.usable_cores
    # What the host is said to do is the training's doing: the probe's own workers are none of its.
    assert session.telemetry is not None
    assert session.telemetry.host is not None
    assert session.telemetry.host.workers_cpu_cores is None


def test_slow_collate_is_named_with_its_line(make_trainer: Make) -> None:
    session = fitted(make_trainer, Samples(), collate_fn=pad)
    assert place_of(pad) in first_of(session, "PD108").summary


def test_many_small_tensors_are_named_when_workers_move_them(make_trainer: Make) -> None:
    finding = first_of(fitted(make_trainer, Fields(), num_workers=1), "PD109")
    assert "200 tensors" in finding.summary


def test_sleeping_storage_is_named_with_the_function_that_waits(make_trainer: Make) -> None:
    session = fitted(make_trainer, Storage())
    assert place_of(Storage.read) in first_of(session, "PD106").summary


def test_workers_are_named_when_the_data_is_tiny(make_trainer: Make) -> None:
    dataset = TensorDataset(torch.rand(N_SAMPLES * 4, N_FEATURES))
    finding = first_of(fitted(make_trainer, dataset, num_workers=2), "PD103")
    assert finding.prescriptions[0].loader_args["num_workers"] == 0


def test_indexing_of_tensors_is_named_when_samples_are_their_rows(make_trainer: Make) -> None:
    dataset = TensorDataset(torch.rand(N_SAMPLES * 16, N_FEATURES))
    first_of(fitted(make_trainer, dataset, batch_size=256), "PD110")


def test_bursts_are_named_when_a_few_samples_are_slow(make_trainer: Make) -> None:
    finding = first_of(fitted(make_trainer, Bursty(), num_workers=2), "PD105")
    assert finding.prescriptions[0].loader_args["prefetch_factor"] > 2


def test_growth_is_named_when_workers_keep_samples(make_trainer: Make) -> None:
    session = fitted(make_trainer, Growing(), num_workers=1)
    assert "PD113" in [finding.code for finding in session.findings], session.loader_probe


def test_nothing_is_said_of_the_data_when_it_comes_in_time(make_trainer: Make) -> None:
    session = fitted(make_trainer, Samples(), n_layers=200)
    said = [(f.code, f.summary) for f in session.findings if f.category == "data" and f.severity != "info"]
    assert said == []
