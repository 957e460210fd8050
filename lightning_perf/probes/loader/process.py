"""Kernel counters of this process: its own memory, reads, queueing; and the limit of its memory."""

import contextlib
import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

from lightning_perf.cgroups import free_bytes


def storage_bytes_read() -> int | None:
    """Return the bytes that this process has read from storage; None if the kernel does not report them."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("read_bytes:")).split()[1])
    return None


def queued_s() -> float:
    """Return the seconds that this thread was ready while others had its core; 0 if the kernel does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def n_waits() -> int:
    """Return how often this thread gave up its core to wait for something; 0 if the kernel does not report it."""
    import resource  # not on Windows, where nothing is probed

    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nvcsw


def private_bytes(with_copied_pages: bool) -> float:
    """Return the bytes of this process's own memory, without freed memory; NaN if the kernel does not report them.

    ``with_copied_pages`` includes pages that were shared with the parent until this process wrote to them. Reading
    Python objects writes to them, since it counts references. While the parent keeps writing this is unreliable,
    because pages that the parent copies become the child's own.
    """
    _memory_trimmer()(0)
    file, name = ("smaps_rollup", "Private_Dirty:") if with_copied_pages else ("status", "RssAnon:")
    try:
        return float(_bytes_of(file, name))
    except (OSError, ValueError, IndexError):
        return float("nan")


@functools.cache
def _memory_trimmer() -> Callable[[int], int]:
    """Return a function that returns freed memory to the kernel, since fragments would otherwise look like growth."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim  # only in glibc
    except (OSError, AttributeError):
        return int
    return trim


def limit_memory(share: float) -> None:
    """Limit this process, and each that it starts, to a share of the memory that is free now."""
    import resource  # not on Windows, where nothing is probed

    with contextlib.suppress(OSError, ValueError, IndexError):
        limit = int(_bytes_of("status", "VmData:") + share * free_bytes())
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def _bytes_of(file: str, field: str) -> int:
    text = Path("/proc/self", file).read_text(encoding="ascii", errors="replace")
    return int(text[text.index(field) :].split(maxsplit=2)[1]) * 1024
