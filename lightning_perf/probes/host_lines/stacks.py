"""Read a thread's stack: the user's lines below Lightning, and what runs below them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, chain, compress, repeat, starmap
from operator import attrgetter, methodcaller
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

from lightning_perf.probes.code_lines import COMPILED, LIGHTNING, OTHER, TORCH, USER, owner_of

_OURS = ("lightning_perf.probes.", "lightning_perf.seams.")

_MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")  # between a line that calls a module and its forward

OPERATOR = "operator"
"""Torch's own code, unless it loads data, saves files or schedules learning rates."""

_NO_OPERATORS = tuple(
    os.path.join("torch", *parts)
    for parts in (("utils", "data"), ("serialization.py",), ("optim", "lr_scheduler.py"), ("multiprocessing",))
)

Visit = tuple[CodeType, int, int]
"""Code, offset of the instruction and line of a frame."""

Frame = tuple[CodeType, int, int | None, dict[str, Any]]
"""Code, offset of the instruction, line and global names of a frame."""

_fields = attrgetter("f_code", "f_lasti", "f_lineno", "f_globals")
_call = methodcaller("__call__")

_COLLECTS_WHILE_READING = sys.version_info[:2] == (3, 11)
"""Python 3.11 makes frame objects when they are read and collects garbage meanwhile; others make or collect elsewhere.

A callback of the collector hands over the interpreter lock. The frame that is being read may end then, and its object
leads to freed memory (seen as crashes with 3.11.7). Before 3.11.5 this can also deadlock (python/cpython#106883).
"""


def frames_of(thread: int, current_frames: Callable[[], dict[int, FrameType]]) -> list[Frame]:
    """Return a thread's frames, innermost first; empty if the thread has ended.

    A single call of C functions, within which the interpreter lock is not handed over: lines of different moments would
    be read otherwise.
    """
    innermost = map(methodcaller("get", thread), starmap(current_frames, [()]))
    frames = accumulate(chain(innermost, repeat("f_back")), getattr)
    read: Callable[[], list[Frame]] = partial(list, map(_fields, iter(frames.__next__, None)))
    return _without_collecting(read) if _COLLECTS_WHILE_READING else read()


def _without_collecting(read: Callable[[], list[Frame]]) -> list[Frame]:
    """Return what ``read`` returns, with the garbage collector off meanwhile; again a single call of C functions."""
    was_on: list[bool] = []
    note = partial(was_on.extend, map(_call, (gc.isenabled,)))
    steps: Iterator[Callable[[], Any]] = chain((note, gc.disable, read), compress((gc.enable,), was_on))
    try:
        return cast("list[Frame]", list(map(_call, steps))[2])
    except BaseException:
        if any(was_on):
            gc.enable()
        raise


class Stack(NamedTuple):
    """What a sample keeps: no frame, so that nothing that frames hold lives longer.

    Attributes:
        lines: The user's frames below Lightning's outermost frame, outermost first.
        below: The frame that the innermost of them called; None if that one runs itself.
        leaf: Whose code runs: ``"user"``, ``"operator"``, ``"lightning"`` or ``"other"``.
    """

    lines: tuple[Visit, ...]
    below: CodeType | None
    leaf: str


class StackReader:
    """Reads stacks, and caches the owners of files."""

    def __init__(self) -> None:
        self.globals_of: dict[CodeType, dict[str, Any]] = {}
        """Global names seen by the user's code."""
        self.loops: set[CodeType] = set()
        """The user's functions that loop over steps without a Trainer."""
        self.modules: dict[CodeType, str] = {}
        """Modules of the functions that the user's lines call."""
        self._owners: dict[str, str] = {}

    def read(self, frames: Iterable[Frame]) -> Stack | None:
        """Return the stack of these frames, given innermost first; None if Lightning is not on it."""
        leaf = ""
        below: CodeType | None = None
        inner: tuple[CodeType, dict[str, Any]] | None = None
        pending: list[Visit] = []
        n_confirmed = 0
        is_below_lightning = False
        for code, offset, line, names in frames:
            if names.get("__name__", "").startswith(_OURS):  # as if it was not there
                continue
            file = code.co_filename
            if file[0] == "<":  # generated for a module, as methods of dataclasses are
                file = names.get("__file__") or file
            owner = self._owners.get(file) or self._owner(file)
            leaf = leaf or owner
            if owner == USER:
                if not pending and inner is not None:
                    below, names_below = inner
                    if below not in self.modules:
                        self.modules[below] = str(names_below.get("__name__", ""))
                pending.append((code, offset, line or 0))
                if code not in self.globals_of:
                    self.globals_of[code] = names
                if code in self.loops:
                    n_confirmed = len(pending)
                    is_below_lightning = True
            elif owner == LIGHTNING:
                n_confirmed = len(pending)  # frames further out than all of Lightning's only started the run
                is_below_lightning = True
            if code.co_name not in _MODULE_CALLS:
                inner = code, names
        if not is_below_lightning:
            return None
        return Stack(tuple(reversed(pending[:n_confirmed])), below if n_confirmed else None, leaf)

    def _owner(self, file: str) -> str:
        owner = owner_of(file)
        if owner in (TORCH, COMPILED):
            is_torch = owner == COMPILED or f"{os.sep}torch{os.sep}" in file
            owner = OPERATOR if is_torch and not any(part in file for part in _NO_OPERATORS) else OTHER
        self._owners[file] = owner
        return owner
