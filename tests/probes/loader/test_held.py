"""Loaders that share something with the training are not probed unasked."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import queue
import random
import socket
import sqlite3
import sys
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset, default_collate

from lightning_perf.probes.loader import copying, held
from lightning_perf.probes.loader.copying import refuses_unasked

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")

GLOBAL_LOCK = threading.Lock()


class Holding(Dataset):
    """Holds something; nothing of it is to be called by a look at what it holds."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


class Slotted:
    """An object without attributes of its own."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Named(Holding):
    """Reads a lock by its global name."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with GLOBAL_LOCK:
            return super().__getitem__(index)


class OfClass(Holding):
    """Has its lock in the class."""

    lock = threading.Lock()


@pytest.fixture(autouse=True)
def _landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "landlock_version", lambda: 1)
    monkeypatch.setattr(copying, "free_bytes", lambda: 2**60)


def refused(dataset: Any, **arguments: Any) -> str:
    return refuses_unasked(DataLoader(dataset, batch_size=2, **arguments)) or ""


Pair = namedtuple("Pair", "first second")

WRAPPED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "list": lambda value: [[0], [value]],
    "late in a list": lambda value: [*range(5000), value],
    "dict": lambda value: {"a": {"b": value}},
    "set": lambda value: {1, Slotted(value)},
    "tuple": lambda value: (1, (value,)),
    "named tuple": lambda value: Pair(1, value),
    "object": lambda value: Holding(Holding(value)),
    "slots": Slotted,
    "partial": lambda value: functools.partial(print, file=value),
    "closure": lambda value: lambda: value,
    "method": lambda value: Holding(value).__len__,
    "array": lambda value: np.array([None, value], dtype=object),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_loader_is_refused_when_its_dataset_holds_a_lock_in(wrap: Callable[[Any], Any]) -> None:
    assert "the dataset holds a _thread.lock" in refused(Holding(wrap(threading.Lock())))


SHARED: dict[str, Callable[[Path], Any]] = {
    "RLock": lambda _: threading.RLock(),
    "event of multiprocessing": lambda _: multiprocessing.Event(),
    "queue of multiprocessing": lambda _: multiprocessing.Queue(),
    "value": lambda _: multiprocessing.Value("i"),
    "raw array": lambda _: multiprocessing.RawArray("i", 2),
    "pipe": lambda _: multiprocessing.Pipe()[0],
    "process": lambda _: multiprocessing.Process(),
    "queue": lambda _: queue.Queue(),
    "thread": lambda _: threading.Thread(),
    "file": lambda folder: (folder / "file").open("w"),
    "binary file": lambda folder: (folder / "file").open("wb", buffering=0),
    "socket": lambda _: socket.socket(),
    "database": lambda _: sqlite3.connect(":memory:"),
    "generator": lambda _: (number for number in range(3)),
    "shared tensor": lambda _: torch.zeros(3).share_memory_(),
    "writable map": lambda folder: np.memmap(folder / "map", dtype="u1", mode="w+", shape=(10,)),
    "array over a writable map": lambda f: np.asarray(np.memmap(f / "map", dtype="u1", mode="w+", shape=(10,)))[2:],
    "tensor of a file": lambda folder: torch.from_file(str(folder / "f"), shared=True, size=4),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_loader_is_refused_when_its_dataset_shares(
    make: Callable[[Path], Any], num_workers: int, tmp_path: Path
) -> None:
    assert "the dataset holds" in refused(Holding([make(tmp_path)]), num_workers=num_workers)


class Stream(IterableDataset):
    """A stream."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


class OwnSampler(SequentialSampler):
    """A sampler with a lock."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.lock = threading.Lock()


def collate_locked(samples: list[Any], lock: Any = threading.Lock()) -> Any:  # noqa: B008 - as users write it
    """Collate with a lock."""
    return default_collate(samples)


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: DataLoader(Named()), "the dataset holds a _thread.lock"),
        (lambda: DataLoader(OfClass()), "the dataset holds a _thread.lock"),
        (lambda: DataLoader(Holding(), collate_fn=collate_locked), "the collate_fn holds a _thread.lock"),
        (lambda: DataLoader(Holding(), sampler=OwnSampler(range(8))), "the sampler holds a _thread.lock"),
        (lambda: DataLoader(Holding(), batch_sampler=OwnSampler(range(8))), "the batch_sampler holds a _thread.lock"),
        (
            lambda: DataLoader(Holding(), num_workers=1, worker_init_fn=functools.partial(print, threading.Lock())),
            "the worker_init_fn holds a _thread.lock",
        ),
        (lambda: DataLoader(Stream()), "IterableDataset"),
    ],
)
def test_loader_is_refused_when_a_part_of_it_is_shared(loader: Callable[[], DataLoader], reason: str) -> None:
    assert reason in (refuses_unasked(loader()) or "")


@pytest.mark.parametrize(
    "value",
    [
        [("path", index) for index in range(5000)],
        {"samples": np.zeros((4, 4)), "names": ["a"], "of": {1: {2, 3}}},
        torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()),
        logging.getLogger("data"),
        np.random.default_rng(1),
        random.Random(1),
        torch.Generator(),
        Path("/data"),
        functools.lru_cache(len),
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_loader_is_probed_when_its_dataset_holds_data_only(value: Any) -> None:
    assert refused(Holding(value), shuffle=True, generator=torch.Generator()) == ""
    assert refused(TensorDataset(torch.zeros(8))) == ""


def test_loader_is_probed_when_its_memory_map_is_for_reading(tmp_path: Path) -> None:
    (tmp_path / "map").write_bytes(bytes(100))
    assert refused(Holding(np.memmap(tmp_path / "map", mode="r"))) == ""
    assert refused(Holding(np.memmap(tmp_path / "map", mode="c"))) == ""


def test_no_code_of_the_users_runs_when_a_loader_is_looked_at() -> None:
    class Watchful(Holding):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __hash__(self) -> int:
            raise AssertionError

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        @property
        def samples(self) -> Any:
            raise AssertionError

    assert refused(Holding([object.__new__(Watchful)])) == ""


def test_look_ends_when_a_dataset_holds_itself_and_very_much(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Holding()
    dataset.value = [dataset]
    assert refused(dataset) == ""
    monkeypatch.setattr(held, "_MAX_VALUES", 50)
    dataset.value = [[[index]] for index in range(1000)]
    assert refused(dataset) == ""


def test_loader_is_refused_when_memory_or_landlock_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "free_bytes", lambda: 0)
    assert "memory is short" in refused(Holding())
    monkeypatch.setattr(copying, "landlock_version", lambda: 0)
    assert "Landlock" in refused(Holding())
