"""Resources used by the processes of a training: its loader workers, and the training thread itself."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

RESCAN_EVERY = 5
"""Every so many scans, children of all threads are listed; threads other than the main one rarely start any."""


class WorkerProcesses:
    """The descendants of this process that run its own program: loader workers.

    Other programs that a training starts (a logger's service, a compiler), multiprocessing's own servers, loader
    probes and other ranks are excluded.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._pid = os.getpid()
        self._has_children_file = os.path.exists(f"{self._proc}/{self._pid}/task/{self._pid}/children")
        self._program = read_bytes(f"{self._proc}/{self._pid}/cmdline")
        self._rank = _local_rank(read_bytes(f"{self._proc}/{self._pid}/environ"))
        self._is_worker: dict[int, bool] = {}
        self._descendants: dict[int, psutil.Process] = {}
        self._n_scans = 0

    def pids(self) -> set[int]:
        """Return this process and all descendants, as last seen."""
        return {self._pid, *self._descendants}

    def processes(self) -> list[psutil.Process]:
        """Return the live workers."""
        if not self._has_children_file:
            if self._n_scans % RESCAN_EVERY == 0:
                children = psutil.Process(self._pid).children(recursive=True)
                self._descendants = {child.pid: child for child in children}
        else:
            found = self._scan()
            known = self._descendants
            each = ((pid, known.get(pid) or _process(pid)) for pid in found)
            self._descendants = {pid: process for pid, process in each if process is not None}
        self._n_scans += 1
        self._is_worker = {
            pid: self._is_worker[pid] if pid in self._is_worker else self._is_loader_worker(pid)
            for pid in self._descendants
        }
        return [process for pid, process in self._descendants.items() if self._is_worker[pid]]

    def _scan(self) -> set[int]:
        tasks = [str(self._pid)]
        if self._n_scans % RESCAN_EVERY == 0:
            tasks = os.listdir(f"{self._proc}/{self._pid}/task")
        waiting = {pid for task in tasks for pid in self._children(self._pid, task)}
        # Those seen before may be children of a thread that is not scanned now.
        waiting |= {pid for pid in self._descendants if os.path.exists(f"{self._proc}/{pid}")}
        found: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting |= self._children(pid, str(pid))
        return found

    def _children(self, pid: int, task: str) -> set[int]:
        return {int(child) for child in read_bytes(f"{self._proc}/{pid}/task/{task}/children").split()}

    def _is_loader_worker(self, pid: int) -> bool:
        if not self._program:
            return True
        program = read_bytes(f"{self._proc}/{pid}/cmdline")
        parent, group = read_bytes(f"{self._proc}/{pid}/stat").rpartition(b")")[2].split()[1:3] or (b"", b"")
        if group != b"%d" % os.getpgrp():  # the child of a loader probe, or its workers
            return False
        # Workers of a fork server, its children, have the server's command line.
        is_server = b".forkserver" in program and parent == b"%d" % self._pid
        is_server |= b".resource_tracker" in program
        is_same = program == self._program or (b"multiprocessing" in program and not is_server)
        # Lightning sets the variable in rank 0 only once that runs; programs started later inherit it.
        ranks = self._rank, f"LOCAL_RANK={os.environ.get('LOCAL_RANK')}".encode()
        return is_same and _local_rank(read_bytes(f"{self._proc}/{pid}/environ")) in ranks


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _local_rank(environ: bytes) -> bytes:
    return next((entry for entry in environ.split(b"\0") if entry.startswith(b"LOCAL_RANK=")), b"")


def read_bytes(path: str) -> bytes:
    """Return the content of a small file that the kernel writes; empty if it is gone or not readable."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:  # ended meanwhile, or not ours to read
        return b""


class KeptFile:
    """A small file of numbers that the kernel writes, kept open to make readings cheap.

    The ``schedstat`` of a thread has the nanoseconds that it has spent on a core, and queueing for one (Linux).
    """

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):  # not Linux, a kernel without it, or its process has ended
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def numbers(self) -> tuple[int, int] | None:
        """Return the first two numbers; None without the file, and once its process or thread has ended."""
        if self._descriptor is None:
            return None
        try:
            fields = os.pread(self._descriptor, 128, 0).split()
            return int(fields[0]), int(fields[1])
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        if self._descriptor is not None:
            # First None: an interrupt must not close the descriptor twice.
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class FetchWatch:
    """State of the training thread during the data wait: computing, queueing for a core, or idle.

    One fetch in ``INTERVAL_STEPS`` steps is sampled, and after ``N_FREQUENT`` samples one in ``LATER_INTERVAL_STEPS``,
    so that sampling costs less than a microsecond per step. Created in that thread. ``ran_ns`` reads the thread's CPU
    time: the kernel updates ``schedstat`` only at thread switches or ticks, every few milliseconds, and would miss
    shorter fetches.
    """

    INTERVAL_STEPS = 7
    """Prime, so that samples do not always meet the same worker: workers deliver in turn."""

    N_FREQUENT = 256
    LATER_INTERVAL_STEPS = 251
    """Prime, as above."""

    def __init__(self, now_ns: Callable[[], int], ran_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._now_ns, self._ran_clock_ns = now_ns, ran_ns
        self._clock = KeptFile(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self.next_step = self.INTERVAL_STEPS
        """Index of the next step whose fetch is sampled."""
        self._n_samples = 0
        self._before: tuple[int, int, int] | None = None
        self.is_sampling = False
        self._wall_ns = self._ran_ns = self._queued_ns = 0

    def begins(self, n_steps: int) -> None:
        self._n_samples += 1
        is_frequent = self._n_samples < self.N_FREQUENT
        self.next_step = n_steps + (self.INTERVAL_STEPS if is_frequent else self.LATER_INTERVAL_STEPS)
        reading = self._clock.numbers()
        self._before = None if reading is None else (self._now_ns(), self._ran_clock_ns(), reading[1])
        self.is_sampling = True

    def ends(self) -> None:
        self.is_sampling = False
        if self._before is None:
            return
        before_ns, ran_ns, queued_ns = self._before
        self._before = None
        reading = self._clock.numbers()
        if reading is not None:
            self._wall_ns += self._now_ns() - before_ns
            self._ran_ns += self._ran_clock_ns() - ran_ns
            self._queued_ns += reading[1] - queued_ns

    def fractions(self) -> tuple[float | None, float | None]:
        """Return the fraction of sampled fetch time off a core and not queueing, and the fraction queueing."""
        if self._wall_ns == 0:
            return None, None
        queueing = min(1.0, self._queued_ns / self._wall_ns)
        return max(0.0, 1.0 - self._ran_ns / self._wall_ns - queueing), queueing

    def close(self) -> None:
        self._clock.close()
        self._before = None
