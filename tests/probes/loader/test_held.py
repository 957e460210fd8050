"""Loaders that share state with the training are not probed automatically."""

from __future__ import annotations

import ctypes
import datetime
import functools
import gzip
import hashlib
import io
import json
import logging
import math
import multiprocessing
import os
import queue
import random
import re
import socket
import sqlite3
import sys
import threading
import time
import tracemalloc
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from lightning_perf.probes.loader import copying, held, native_code
from lightning_perf.probes.loader.copying import why_not_automatic

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks only on Linux")

GLOBAL_LOCK = threading.Lock()


class Holding(Dataset):
    """Holds a value, none of whose code the search may run."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1)


class Slotted:
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
    return why_not_automatic(DataLoader(dataset, batch_size=2, **arguments)) or ""


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
    "subclass of partial": lambda value: type("Subclass", (functools.partial,), {})(print, file=value),
    "closure": lambda value: lambda: value,
    "method": lambda value: Holding(value).__len__,
    "array": lambda value: np.array([None, value], dtype=object),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_loader_is_refused_when_its_dataset_holds_a_lock(wrap: Callable[[Any], Any]) -> None:
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
    "view of memory": lambda _: memoryview(bytearray(3)),
    "library": lambda _: ctypes.CDLL(None),
    "capsule": lambda _: datetime.datetime_CAPI,
    "tensor of a file": lambda folder: torch.from_file(str(folder / "f"), shared=True, size=4),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_loader_is_refused_when_its_dataset_shares(make: Callable[[Path], Any], tmp_path: Path) -> None:
    assert "the dataset holds" in refused(Holding([make(tmp_path)]))


class Tool:
    """A class that code names: it is used, though no instance of it is held."""

    def read(self) -> Any:
        return psutil.cpu_count()


def import_late() -> Any:
    import psutil._psutil_linux as late

    return late


PLANTED = types.ModuleType("planted")
"""A package in Python alone, which imports one in C."""
PLANTED.__dict__.update(__file__="/lib/site-packages/planted/__init__.py", inner=psutil)

CALLING: dict[str, tuple[Callable[[], Any], str]] = {
    "package": (lambda: lambda: psutil.cpu_count(), "code in C of psutil"),
    "package imported late": (lambda: import_late, "code in C of psutil"),
    "package of a package": (lambda: lambda: PLANTED.inner, "code in C of psutil._psutil_linux through planted"),
    "function in C": (lambda: msgspec.json.encode, "code in C of msgspec"),
    "function in C of an iterator": (lambda: map(msgspec.json.encode, []), "code in C of msgspec"),
    "class": (lambda: lambda: Tool, "code in C of psutil"),
    "class of a package": (lambda: lambda: psutil.Process, "code in C of psutil"),
    "instance of a package": (lambda: psutil.Process.__new__(psutil.Process), "code in C of psutil"),
    "shared memory by name": (lambda: lambda: shared_memory.SharedMemory("x"), "the module multiprocessing"),
    "functions of libraries": (lambda: lambda: ctypes.CDLL(None), "the module ctypes"),
    "torch.multiprocessing": (lambda: lambda: torch.multiprocessing.Lock(), "the module torch.multiprocessing"),
}


@pytest.mark.parametrize(("make", "reason"), CALLING.values(), ids=CALLING)
def test_loader_is_refused_when_its_code_calls_code_in_c_that_is_not_known(
    make: Callable[[], Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "planted", PLANTED)
    assert f"the dataset calls {reason}" in refused(Holding([make()]))


class Counted(Holding):
    """Calls code in C that is not known, but only as it is made."""

    def __init__(self) -> None:
        super().__init__(psutil.cpu_count())


class WithPlace(Counted):
    """Is unpickled by calling the class."""

    def __reduce__(self) -> Any:
        return Counted, ()


class WithFactory(Counted):
    @classmethod
    def again(cls) -> Counted:
        return cls()


class ByType(Counted):
    """Makes further instances without naming the class."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(len(type(self)()))


class ByClassAttribute(Counted):
    """Makes further instances without naming the class."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(len(getattr(self, "__class__")()))  # noqa: B009 - found as a string


class ByName(Counted):
    """Makes further instances in a function inside of a method."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(len((lambda: ByName())()))


class CallingInit(Counted):
    def __getitem__(self, index: int) -> torch.Tensor:
        self.__init__()  # type: ignore[misc]
        return torch.zeros(1)


class InList(Counted, list):
    """Has a base in C that is pickled as objects are."""


class InOrder(Counted, OrderedDict):
    """Has a base in C that is pickled by calling the class."""

    def __init__(self) -> None:
        OrderedDict.__init__(self)
        self.value = psutil.cpu_count()


@pytest.mark.parametrize("make", [Counted, InList, lambda: Subset(Counted(), [0]), lambda: Holding([Counted()])])
def test_loader_is_probed_when_only_init_of_its_dataset_calls_code_in_c_that_is_not_known(
    make: Callable[[], Any],
) -> None:
    assert refused(make()) == ""


@pytest.mark.parametrize(
    "make",
    [
        WithPlace,
        WithFactory,
        ByType,
        ByClassAttribute,
        ByName,
        CallingInit,
        InOrder,
        lambda: Holding([Counted(), Counted]),
        lambda: Holding([Counted(), lambda: Counted()]),
        lambda: Holding([Counted(), lambda value: type(value)()]),
    ],
)
def test_loader_is_refused_when_a_copy_may_run_init_of_its_dataset_again(make: Callable[[], Any]) -> None:
    assert "the dataset calls code in C of psutil" in refused(make())


def test_loader_is_refused_when_a_type_in_c_claims_to_be_of_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_code, "_INTERPRETER_TYPES", native_code._INTERPRETER_TYPES - {complex})
    assert "holds a Number" in refused(Holding(type("Number", (complex,), {})()))


class Usual(Dataset):
    """Reads as datasets usually do."""

    def __init__(self) -> None:
        self.paths = [Path(str(index)) for index in range(5000)]
        self.pattern, self.decoder, self.rng = re.compile("a"), json.JSONDecoder(), np.random.default_rng(1)
        self.transform = torch.nn.Sequential(torch.nn.Linear(2, 2))
        self.labels = {"a": [{"box": [index, (index,)]} for index in range(5000)]}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with gzip.open(self.paths[index]) as file, Image.open(io.BytesIO(file.read())) as image:
            logging.getLogger(__name__).debug("read after %s s", time.monotonic())
            array = np.asarray(image.convert("RGB"))
        if random.random() < 0.5 and os.path.exists(self.paths[index]) and math.pi:
            array = np.flip(array, 1)
        return self.transform(torch.nn.functional.relu(torch.from_numpy(array))), hashlib.sha256(b"").hexdigest()


def test_loader_is_probed_when_its_dataset_reads_and_computes_only() -> None:
    usual = Usual()
    assert refused(ConcatDataset([usual, Subset(usual, [1])]), shuffle=True) == ""


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(())


class LockedSampler(SequentialSampler):
    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.lock = threading.Lock()


def collate_locked(samples: list[Any], lock: Any = threading.Lock()) -> Any:  # noqa: B008 - as users write it
    return default_collate(samples)


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: DataLoader(Named()), "the dataset holds a _thread.lock"),
        (lambda: DataLoader(OfClass()), "the dataset holds a _thread.lock"),
        (lambda: DataLoader(Holding(), collate_fn=collate_locked), "the collate_fn holds a _thread.lock"),
        (lambda: DataLoader(Holding(), sampler=LockedSampler(range(8))), "the sampler holds a _thread.lock"),
        (
            lambda: DataLoader(Holding(), batch_sampler=LockedSampler(range(8))),
            "the batch_sampler holds a _thread.lock",
        ),
        (
            lambda: DataLoader(Holding(), num_workers=1, worker_init_fn=functools.partial(print, threading.Lock())),
            "the worker_init_fn holds a _thread.lock",
        ),
        (lambda: DataLoader(Stream()), "IterableDataset"),
    ],
)
def test_loader_is_refused_when_a_part_of_it_is_shared(loader: Callable[[], DataLoader], reason: str) -> None:
    assert reason in (why_not_automatic(loader()) or "")


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


def test_no_user_code_runs_when_a_loader_is_inspected() -> None:
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


def test_search_ends_when_a_dataset_holds_itself_or_very_much(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Holding()
    dataset.value = [dataset]
    assert refused(dataset) == ""
    monkeypatch.setattr(held, "_MAX_VALUES", 50)
    dataset.value = [[[index]] for index in range(1000)]
    assert refused(dataset) == ""
    dataset.value = [Slotted(Holding()) for _ in range(1000)]
    assert "more than 50 objects" in refused(dataset)


@pytest.mark.parametrize("container", [list(range(200_000)), dict.fromkeys(range(200_000))], ids=["list", "dict"])
def test_containers_with_many_items_are_searched_in_little_memory(container: Any) -> None:
    tracemalloc.start()
    try:
        assert list(held._references(container)) == []
        assert tracemalloc.get_traced_memory()[1] < 32 * len(container)
    finally:
        tracemalloc.stop()


def test_loader_is_refused_when_memory_or_landlock_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "free_bytes", lambda: 0)
    assert "memory is short" in refused(Holding())
    monkeypatch.setattr(copying, "landlock_version", lambda: 0)
    assert "Landlock" in refused(Holding())
