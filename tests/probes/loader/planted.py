"""Datasets with one planted trait each, and what checks that a probe of them leaves nothing behind."""

from __future__ import annotations

import fcntl
import math
import os
import random
import signal
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lightning_perf.probes.loader.prober import LoaderProber
from lightning_perf.records import LoaderProbe

N_SAMPLES = 1024
BATCH_SIZE = 16
BAD_INDEX = 40
HERE = __file__


class Plain(Dataset):
    """Return a small new tensor per sample; no fault."""

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), float(index))


class SlowPython(Plain):
    """Computes in a Python loop."""

    def augment(self, index: int) -> float:
        total = 0.0
        for step in range(3000):
            total += step * 0.5
        return total

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), self.augment(index))


class SlowNative(Plain):
    """Computes in C, in a function called by name."""

    blob = bytes(os.urandom(1000)) * 20

    def squeeze(self) -> int:
        return len(zlib.compress(self.blob, 6))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(self.squeeze()))


class SlowOperators(Plain):
    """Computes in C, by operators on an array: no profiler sees a function there."""

    def __init__(self) -> None:
        self.image = np.random.default_rng(0).random((600, 600))

    def blend(self) -> Any:
        image = self.image
        for _ in range(3):
            image = image * image + 0.5
        return image

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(self.blend()[0, 0]))


class Waiting(Plain):
    """Waits for its storage."""

    def read(self) -> None:
        time.sleep(0.002)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read()
        return super().__getitem__(index)


class Serialized(Plain):
    """Waits in turn: one lock for all processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def read_in_turn(self) -> None:
        with self.path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(0.004)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read_in_turn()
        return super().__getitem__(index)


class ManyTensors(Plain):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {f"field{n}": torch.zeros(1) for n in range(100)}


class Bursty(Plain):
    """One sample in 32 takes 30 times as long."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.012 if index % 32 == 7 else 0.0004)
        return super().__getitem__(index)


class Disturbed(Plain):
    """Every 32nd call takes 5 ms of CPU, whatever its index, as if another machine on the host used the core."""

    def __init__(self) -> None:
        self.n_calls = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.n_calls += 1
        if self.n_calls % 32 == 7:
            _compute(0.005)
        return super().__getitem__(index)


class Growing(Plain):
    """Keeps 64 KiB of every sample."""

    def __init__(self) -> None:
        self.kept: list[bytearray] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.0005)
        self.kept.append(bytearray(os.urandom(64)) * 1024)
        return super().__getitem__(index)


class Devouring(Plain):
    """Keeps more of every sample than there is memory for."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.kept.append(np.ones(2**21))  # 16 MiB
        return super().__getitem__(index)


class Rows(Plain):
    """Rows of tensors in memory, one at a time."""

    def __init__(self) -> None:
        self.values = torch.randn(N_SAMPLES, 8)
        self.labels = torch.zeros(N_SAMPLES, dtype=torch.long)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.values[index], self.labels[index]


class Raising(Plain):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == BAD_INDEX:
            raise ValueError("no such\nfile")
        return super().__getitem__(index)


class Hanging(Plain):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == BAD_INDEX:
            time.sleep(3600)
        return super().__getitem__(index)


class Killing(Plain):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == BAD_INDEX:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class KillingWorkers(Plain):
    """Dies in worker processes only."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.0002)
        return super().__getitem__(index)


class Augmented(Plain):
    """Draws from every generator, and reads from a file that it opened once."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + np.random.rand() + torch.rand(1).item()
        self.file.read(7)
        return super().__getitem__(index) + noise


class Stream(IterableDataset):
    """Yields the same in each worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(N_SAMPLES):
            time.sleep(0.0005)
            yield torch.full((8,), float(index))


class ShardedStream(IterableDataset):
    """Divides itself among workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, N_SAMPLES, step):
            time.sleep(0.0005)
            yield torch.full((8,), float(index))


def _compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def slow_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    total = 0.0
    for step in range(60_000):
        total += math.sqrt(step)
    return torch.stack(samples)


def probed(loader: Any, limit_s: float = 2.5, **arguments: Any) -> LoaderProbe:
    """The record of a loader, with nothing left behind."""
    before = traces_left()
    prober = LoaderProber(limit_s, **arguments)
    try:
        record = prober.start(loader) or prober.wait()
    finally:
        prober.close()
    assert not (left := left_since(before)), left
    return record


def measured(
    loader: Any, limit_s: float = 2.5, is_enough: Callable[[LoaderProbe], bool] = lambda _: True, **arguments: Any
) -> LoaderProbe:
    """Return the record of a probe that was given as much time as it needs on this machine.

    Args:
        loader: What to probe.
        limit_s: Time that is enough where no other program uses the cores.
        is_enough: Whether a record holds what the test is about.
        arguments: Further arguments of the prober.
    """
    for factor in (1, 3, 9):
        record = probed(loader, factor * limit_s, **arguments)
        if record.status == "measured" and is_enough(record):
            return record
    raise AssertionError(f"{record.status}: {record.reason or record}")


def left_since(before: dict[str, Any], timeout_s: float = 5.0) -> dict[str, set[str]]:
    """Return by kind what ``traces_left`` lists now and did not before, and still lists after a while.

    Shared memory of other processes on the machine is released within seconds.
    """
    left = {kind: set(now) - set(before[kind]) for kind, now in traces_left().items()}
    end_s = time.monotonic() + timeout_s
    while any(left.values()) and time.monotonic() < end_s:
        time.sleep(0.1)
        left = {kind: left[kind] & set(now) for kind, now in traces_left().items()}
    return {kind: names for kind, names in left.items() if names}


def traces_left() -> dict[str, Any]:
    """What a probe of this process could leave: descriptors, shared memory, scratch folders, children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ours = f"lperf{os.getpid()}-"
    return {
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "segments": sorted(name for name in os.listdir("/dev/shm") if ours in name or _is_ours(name)),
        "folders": sorted(name for name in os.listdir(tempfile.gettempdir()) if name.startswith(ours)),
        "children": children,
    }


def _is_ours(name: str) -> bool:
    return name.startswith("torch_") and not Path(f"/proc/{name.split('_')[1]}").exists()
