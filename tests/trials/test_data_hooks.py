"""Loaders of a script: the costliest is probed; the ceiling is measured on one batch."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import UserDict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_perf.records import LoaderProbe, Session, WorkerPoint
from lightning_perf.trials.data_hooks import MANY_BATCHES, DataProbeHooks, _described, one_batch_of


class Quick(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(32)


class Slow(Quick):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return super().__getitem__(index)


class Own(DataLoader):
    """A rejected subclass, which may override fetching."""


class Probes(DataProbeHooks, Callback):
    """Probe the loaders of a fit, then end it."""


def probed(folder: Path, loaders: Any, limit_s: float) -> LoaderProbe:
    sessions: list[Session | None] = []
    trainer = Trainer(
        accelerator="cpu", callbacks=[Probes(limit_s, sessions.append)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, max_epochs=1,
    )  # fmt: skip
    trainer.fit(BoringModel(), loaders)
    assert trainer.global_step == 0, "the training went on after the probe"
    (session,) = sessions
    assert session is not None
    assert session.loader_probe is not None
    return session.loader_probe


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")
def test_slowest_of_several_loaders_is_reported_with_the_cost_of_the_others(tmp_path: Path) -> None:
    quick, slow = DataLoader(Quick(), batch_size=4), DataLoader(Slow(), batch_size=4)
    loaders = {"quick": quick, "slow": slow, "own": Own(Quick())}
    probe = probed(tmp_path, loaders, 6.0)
    assert (probe.stage, probe.index) == ("train", 1)
    assert probe.getitem is not None
    assert probe.getitem.p50_s >= 0.002
    assert "combines 3 training loaders; this is the slowest. loader 0: " in probe.missing["others"]
    assert " per batch; loader 2: " in probe.missing["others"]


@pytest.mark.parametrize(("batch_s", "shown"), [(1.2345, "1.23 s"), (0.0123, "12.3 ms"), (5e-6, "5 µs")])
def test_cost_of_another_loader_has_a_suitable_unit(batch_s: float, shown: str) -> None:
    times = {"batch_s": batch_s, "low_s": batch_s, "high_s": batch_s, "first_batch_s": 1.0}
    point = WorkerPoint(num_workers=0, prefetch_factor=None, n_batches=9, **times)
    assert _described(LoaderProbe(status="measured", curve=(point,))) == f"loader 0: {shown} per batch"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")
def test_time_limit_is_kept_when_there_are_many_loaders(tmp_path: Path) -> None:
    probe = probed(tmp_path, [DataLoader(Slow(), batch_size=4), DataLoader(Quick(), batch_size=4)], 3.0)
    assert probe.index == 0
    assert "loader 1: not probed, because time ran out" in probe.missing["others"]


def test_one_batch_is_repeated_with_new_containers() -> None:
    class Wrapped(DataLoader):
        def __iter__(self):
            return ({"x": batch, "meta": ["name"], "own": UserDict(y=batch)} for (batch,) in super().__iter__())

    loader = one_batch_of(Wrapped(TensorDataset(torch.arange(8.0)), batch_size=2))
    assert len(loader) == MANY_BATCHES
    first, second = islice(loader, 2)
    assert first["x"] is second["x"]
    assert torch.equal(first.pop("x"), torch.tensor([0.0, 1.0]))
    first["meta"].clear()
    first["own"].clear()
    assert second == {"x": second["x"], "meta": ["name"], "own": {"y": second["x"]}}
    assert next(iter(loader)) == second


def test_persistent_workers_end_after_the_first_batch() -> None:
    loader = DataLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True)
    assert next(iter(one_batch_of(loader))).tolist() == [0, 1]
    assert loader._iterator is None
    assert multiprocessing.active_children() == []


def test_one_batch_is_as_it_was_after_a_step_changed_it_in_place() -> None:
    batches = iter(one_batch_of(DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2)))
    for _ in range(3):
        (values,) = next(batches)
        assert values.tolist() == [0, 1]
        values.sub_(0.5).div_(0.2)


def test_one_batch_has_no_length_when_its_loader_has_none() -> None:
    loader = one_batch_of(iter([torch.zeros(1), torch.ones(1)]))
    with pytest.raises(TypeError):
        len(loader)
    assert [float(batch) for batch in islice(loader, 3)] == [0.0, 0.0, 0.0]
