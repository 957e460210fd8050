"""What the kernel tells of this process: memory of its own, reading, queueing; and the memory it may take."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

from lightning_perf.cgroups import free_bytes


def storage_bytes_read() -> int | None:
    """Bytes that this process has caused to be read from storage."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("read_bytes:")).split()[1])
    return None


def queued_s() -> float:
    """Seconds that this thread stood ready while others had its core; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


def n_waits() -> int:
    """How often this thread gave up its core to wait for something; 0 where the kernel does not tell."""
    import resource  # there is none on Windows, where nothing is probed

    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nvcsw


def private_bytes(all_of_it: bool) -> float:
    """Memory that is this process's own, without what it has given back; NaN where the kernel does not tell.

    Args:
        all_of_it: With the pages that it shared with its parent until it wrote to them: reading Python objects counts
            as writing, since it counts references. Beside a parent that goes on writing this cannot be told, because
            pages that the parent copies away become the child's own; then only what it allocated counts.
    """
    _trim()
    try:
        if all_of_it:
            text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii", errors="replace")
            return float(_kilobytes(text, "Private_Dirty:") * 1024)
        return float(
            _kilobytes(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"), "RssAnon:") * 1024
        )
    except (OSError, ValueError, IndexError):
        return float("nan")


@functools.cache
def _trimmer() -> Callable[[int], int] | None:
    with contextlib.suppress(OSError, AttributeError):
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim  # glibc's alone
        return trim
    return None


def _trim() -> None:
    """Gives freed memory back to the kernel, which fragments would otherwise let look like growth."""
    trim = _trimmer()
    if trim is not None:
        trim(0)


def limit_memory(share: float) -> None:
    """Lets this process, and each that it starts, take so much of the memory that is free now, and no more."""
    import resource  # there is none on Windows, where nothing is probed

    with contextlib.suppress(OSError, ValueError, IndexError):
        now = _kilobytes(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"), "VmData:") * 1024
        limit = int(now + share * free_bytes())
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))


def _kilobytes(text: str, field: str) -> int:
    return int(text[text.index(field) :].split(maxsplit=2)[1])
