"""Resident memory of this process and its children, and what is left to them.

``/proc/<pid>/statm`` is read where there is one: ten times cheaper than psutil, which is asked elsewhere.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from lightning_perf.cgroups import read_memory_within_limit
from lightning_perf.records import HostMemory

_REFRESH_EVERY = 8

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ResidentMemory:
    """Resident bytes of one process; keeps its file open, for the reading to be cheap.

    Args:
        pid: The process.
        root: Where ``proc`` is found.
    """

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self.pid = pid
        self._process: psutil.Process | None = None
        self._file: int | None = None
        try:
            self._file = os.open(root / "proc" / str(pid) / "statm", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            self._process = psutil.Process(pid)

    def read(self) -> int | None:
        """Bytes now; None when the process has ended."""
        try:
            if self._file is not None:
                fields = os.pread(self._file, 128, 0).split()
                return int(fields[1]) * _PAGE_BYTES if len(fields) > 1 else None
            return None if self._process is None else int(self._process.memory_info().rss)
        except (OSError, psutil.Error):
            return None

    def close(self) -> None:
        """Close the file; calling it twice does no harm."""
        if self._file is not None:
            file, self._file = self._file, None  # first: an interrupt must not have a number closed twice
            os.close(file)
            self._process = psutil.Process(self.pid) if psutil.pid_exists(self.pid) else None


class WorkerMemory:
    """Mean resident memory of the worker processes that are there."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.on_change: Callable[[], None] = lambda: None
        self._files: list[ResidentMemory] = []
        self._n_reads = 0

    def read(self) -> int | None:
        """Bytes a worker; None without workers."""
        if self._n_reads % _REFRESH_EVERY == 0:
            self.refresh()
        self._n_reads += 1
        readings = [file.read() for file in self._files]
        if not readings:
            return None
        if None in readings:  # one has ended: look again next time
            self._n_reads = 0
            return None
        return sum(r for r in readings if r is not None) // len(readings)

    def refresh(self) -> None:
        """Looks which workers there are; others than before make the readings start afresh."""
        pids = sorted(children_pids())
        if pids == self.pids:
            return
        self.close()
        self.pids = pids
        self._files = [ResidentMemory(pid) for pid in self.pids]
        self.on_change()

    def close(self) -> None:
        """Forgets the workers."""
        for file in self._files:
            file.close()
        self._files, self.pids = [], []


def children_pids() -> list[int]:
    """The processes that this one started through multiprocessing, as DataLoaders do their workers."""
    return [child.pid for child in multiprocessing.active_children() if child.pid]


def read_host_memory(worker_pids: Collection[int] = (), root: Path = Path("/")) -> HostMemory:
    """The host's memory now.

    Args:
        worker_pids: Children whose memory counts along.
        root: Where ``proc`` and ``sys`` are found.

    Returns:
        The record, without phases.
    """
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


def peak_rss_bytes() -> int | None:
    """The highest resident memory of this process so far, as the kernel tells; None where it does not."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def _rss_of(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def _swapped_bytes(pids: Collection[int], root: Path) -> int | None:
    """What of these processes lies on swap; None where the kernel does not tell."""
    total = None
    for pid in pids:
        try:
            status = (root / "proc" / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in status.splitlines():
            if line.startswith("VmSwap:"):
                total = (total or 0) + int(line.split()[1]) * 1024
    return total
