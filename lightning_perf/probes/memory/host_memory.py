"""Memory of this process and its workers: resident, in use on the C heap, and what is left.

``/proc/<pid>/statm`` is read if there is one: ten times cheaper than psutil, the fallback.
"""

import contextlib
import ctypes
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from torch.utils._python_dispatch import _disable_current_modes

from lightning_perf.cgroups import read_memory_within_limit, read_text
from lightning_perf.probes import plain
from lightning_perf.probes.telemetry.processes import KeptFile
from lightning_perf.records import HostMemory

_REFRESH_EVERY = 8

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ResidentMemory(KeptFile):
    """Resident bytes of one process."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        super().__init__(str(root / "proc" / str(pid) / "statm"))
        self.pid = pid

    def read(self) -> int | None:
        """Return bytes; None once the process has ended."""
        if self._descriptor is not None:
            pages = self.numbers()
            return None if pages is None else pages[1] * _PAGE_BYTES
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except (OSError, psutil.Error):
            return None


class WorkerMemory:
    """Mean resident memory of the live worker processes."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.on_change: Callable[[], None] = lambda: None
        self._files: list[ResidentMemory] = []
        self._n_reads = 0

    def read(self) -> int | None:
        """Return bytes per worker; None without workers."""
        if self._n_reads % _REFRESH_EVERY == 0:
            self.refresh()
        self._n_reads += 1
        readings = [file.read() for file in self._files]
        if not readings:
            return None
        if None in readings:  # one has ended: refresh at the next reading
            self._n_reads = 0
            return None
        return sum(r for r in readings if r is not None) // len(readings)

    def refresh(self) -> None:
        """List the processes that multiprocessing started, as DataLoaders do; call ``on_change`` if they changed."""
        pids = sorted(child.pid for child in multiprocessing.active_children() if child.pid)
        if pids == self.pids:
            return
        self.close()
        self.pids = pids
        self._files = [ResidentMemory(pid) for pid in self.pids]
        self.on_change()

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files, self.pids = [], []


def read_host_memory(worker_pids: Collection[int] = (), root: Path = Path("/")) -> HostMemory:
    """Return the host's memory without phases; ``worker_pids`` are included."""
    own = psutil.Process().memory_info()
    workers = [rss for rss in map(_rss_of, worker_pids) if rss is not None]
    machine = psutil.virtual_memory()
    within = read_memory_within_limit(root)
    basis = "cgroup"
    if within is None or within[1] > machine.total:
        within, basis = (machine.total - machine.available, machine.total), "machine"
    return HostMemory(
        rss_bytes=own.rss,
        peak_rss_bytes=peak_rss_bytes(),
        workers_rss_bytes=sum(workers),
        n_workers=len(workers),
        used_bytes=within[0],
        limit_bytes=within[1],
        limit_basis=basis,
        swapped_bytes=_swapped_bytes((os.getpid(), *worker_pids), root),
    )


def with_highest(now: HostMemory, before: HostMemory) -> HostMemory:
    """Return the reading ``now``, but the higher value of both readings for quantities that can decrease."""
    names = ("used_bytes", "swapped_bytes", "workers_rss_bytes", "n_workers")
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in names}
    highest = {name: max((one for one in pair if one is not None), default=None) for name, pair in pairs.items()}
    return msgspec.structs.replace(now, **highest)


def peak_rss_bytes() -> int | None:
    """Return the highest resident memory of this process so far; None if the kernel does not report it."""
    if sys.platform == "win32":
        return None
    # The peak of ``getrusage`` includes memory of the process that started this program, e.g. of a notebook.
    if (peak := _status_bytes("VmHWM", os.getpid(), Path("/"))) is not None:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _rss_of(pid: int) -> int | None:
    with contextlib.closing(ResidentMemory(pid)) as memory:
        return memory.read()


def _swapped_bytes(pids: Collection[int], root: Path) -> int | None:
    """Return bytes of these processes on swap; None if the kernel does not report it."""
    known = [n for pid in pids if (n := _status_bytes("VmSwap", pid, root)) is not None]
    return sum(known) if known else None


def _status_bytes(name: str, pid: int, root: Path) -> int | None:
    """Return a size from the status file of a process (Linux); None where there is none."""
    found = re.search(rf"^{name}:\s+(\d+)", read_text(root / "proc" / str(pid) / "status") or "", re.M)
    return None if found is None else int(found[1]) * 1024


_PROBE_BYTES = 2**20
"""Size of the test allocation: more than other threads free in the microseconds between two readings."""


class _Mallinfo2(ctypes.Structure):
    """As in ``malloc.h`` of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


class CHeap:
    """This process's C heap, including host tensors.

    Resident memory also counts free blocks of the heap: it grows while they do, and not while a leak fills them. A
    reading takes up to tens of milliseconds if there are hundreds of thousands of free blocks, so callers limit
    readings by their cost.

    Attributes:
        free_bytes: Bytes of free blocks at the last reading; None before, and once they were taken.
    """

    def __init__(self, mallinfo2: Callable[[], Any]) -> None:
        self.free_bytes: int | None = None
        self._mallinfo2 = mallinfo2

    def read(self) -> int:
        """Return the bytes in use: ``uordblks`` of all arenas, and ``hblkhd`` with a mapping each (mallinfo(3))."""
        info = self._mallinfo2()
        self.free_bytes = int(info.fordblks)
        return int(info.uordblks + info.hblkhd)


def c_heap(find: Callable[[], Any] | None = None) -> tuple[CHeap | None, str]:
    """Return the C heap, or None with the reason.

    There is no ``mallinfo2`` before glibc 2.33, nor in musl, macOS, Windows; or another allocator replaces malloc
    (jemalloc, mimalloc). ``find`` replaces the lookup in tests.
    """
    try:
        # PyDLL keeps the GIL: releasing and acquiring it would take longer than the call.
        mallinfo2 = (find or (lambda: ctypes.PyDLL(None).mallinfo2))()
        mallinfo2.argtypes, mallinfo2.restype = [], _Mallinfo2
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no process to look into
        return None, "the C library does not report bytes in use on its heap (mallinfo2, glibc 2.33 and later)"
    heap = CHeap(mallinfo2)
    before = heap.read()
    with plain.without_overrides(), _disable_current_modes():
        block = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device="cpu")
    risen = heap.read() - before
    del block
    if risen < _PROBE_BYTES // 2:
        return None, "tensors are not on the C library's heap: another allocator replaces it"
    return heap, ""
