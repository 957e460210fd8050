"""Bytes that the C heap has handed out and not got back.

Resident memory is what the heap took from the kernel. A heap with free room, as that of a process that has done other
things before, takes nothing while a leak fills the room. What is handed out rises from the first byte.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import plain

_PROBE_BYTES = 2**20
"""Large enough for other threads not to free as much in the microseconds between two readings."""


class _Mallinfo2(ctypes.Structure):
    """As in ``malloc.h`` of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def heap_in_use(find: Callable[[], Any] | None = None) -> tuple[Callable[[], int] | None, str]:
    """What reads the bytes in use of this process's C heap, tensors on the host included.

    glibc adds up ``uordblks`` over all its arenas; blocks with a mapping of their own stand in ``hblkhd`` (manual page
    mallinfo(3)). It walks the lists of free blocks for that: a microsecond in a young process, tens of milliseconds
    where hundreds of thousands of holes lie between what is in use. So readings have to be rationed by their cost.

    Args:
        find: Gives the function ``mallinfo2``; None for that of the running process.

    Returns:
        The reader, or None with the reason: no such function (glibc before 2.33, musl, macOS, Windows), or an allocator
        that it knows nothing of in malloc's place (jemalloc, mimalloc).
    """
    try:
        # PyDLL keeps the GIL: to let go of it and get it back would take longer than the call.
        mallinfo2 = (find or (lambda: ctypes.PyDLL(None).mallinfo2))()
        mallinfo2.argtypes, mallinfo2.restype = [], _Mallinfo2
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no process to look into
        return None, "the C library does not tell what its heap has handed out (mallinfo2, glibc 2.33 and later)"

    def read() -> int:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    before = read()
    with plain.without_overrides(), _disable_current_modes():
        block = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device="cpu")
    risen = read() - before
    del block
    if risen < _PROBE_BYTES // 2:
        return None, "tensors do not lie on the C library's heap: another allocator is in its place"
    return read, ""
