"""Kernel counters of this process: its own memory, reads, queueing; and the limit of its memory."""

import contextlib
import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

from lightning_perf.cgroups import free_bytes


def storage_bytes_read() -> int | None:
    """Return the bytes that this process has read from storage; None if the kernel does not report them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _number("io", "read_bytes:")
    return None


def queued_s() -> float:
    """Return the seconds that this thread was ready while others had its core; 0 if the kernel does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def n_waits() -> int:
    """Return how often this thread gave up its core to wait for something."""
    import resource  # not on Windows, where nothing is probed

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def private_bytes(with_copied_pages: bool) -> float:
    """Return the bytes of this process's own memory, without freed memory; NaN if the kernel does not report them.

    ``with_copied_pages`` includes pages that were shared with the parent until this process wrote to them. Reading
    Python objects writes to them, since it counts references. While the parent keeps writing this is unreliable,
    because pages that the parent copies become the child's own.
    """
    _memory_trimmer()(0)
    file, name = ("smaps_rollup", "Private_Dirty:") if with_copied_pages else ("status", "RssAnon:")
    try:
        return 1024.0 * _number(file, name)
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
        limit = int(1024 * _number("status", "VmData:") + share * free_bytes())
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def _number(file: str, field: str) -> int:
    text = Path("/proc/self", file).read_text(encoding="ascii", errors="replace")
    return int(text[text.index(field) :].split(maxsplit=2)[1])
