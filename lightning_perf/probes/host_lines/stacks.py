"""Read a thread's stack: the user's lines below Lightning, and what runs below them."""

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, chain, repeat, starmap
from operator import attrgetter, methodcaller
from types import CodeType, FrameType
from typing import Any, NamedTuple

from lightning_perf.probes.atomic_reads import call_atomically
from lightning_perf.probes.sampled_steps.code_lines import COMPILED, LIGHTNING, OTHER, TORCH, USER, owner_of

from .calls import line_of

_OURS = ("lightning_perf.probes.", "lightning_perf.seams.")

_MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")  # between a line that calls a module and its forward
_FORWARD = "forward"  # other functions between it and a module's call are decorators
_DECORATOR = "decorate_context"  # of torch.no_grad and the like
_ROLES = (*_MODULE_CALLS, _FORWARD, _DECORATOR)

OPERATOR = "operator"
"""Torch's own code, unless it loads data, saves files or schedules learning rates."""

_NO_OPERATORS = tuple(
    os.path.join("torch", *parts)
    for parts in (("utils", "data"), ("serialization.py",), ("optim", "lr_scheduler.py"), ("multiprocessing",))
)

Position = tuple[CodeType, int, int]
"""Code, offset of the instruction and line of a frame."""

Frame = tuple[CodeType, int, dict[str, Any]]
"""Code, offset of the instruction and global names of a frame. ``line_of`` finds the line where it is needed:
reading it in every frame took more than half of the time."""

_fields = attrgetter("f_code", "f_lasti", "f_globals")

_MAX_CODES = 4096
"""Code objects whose owner a reader remembers."""


def frames_of(thread: int, current_frames: Callable[[], dict[int, FrameType]]) -> list[Frame]:
    """Return a thread's frames at one moment, innermost first; empty if the thread has ended.

    Python 3.11 creates frame objects when they are read. If the thread continued meanwhile, e.g. during a callback of
    the garbage collector, the object of a frame that has ended would refer to freed memory: 3.11.7 crashed.
    Before 3.11.5 a collection can also deadlock (python/cpython#106883).
    """
    innermost = map(methodcaller("get", thread), starmap(current_frames, [()]))
    frames = accumulate(chain(innermost, repeat("f_back")), getattr)
    return call_atomically(partial(list, map(_fields, iter(frames.__next__, None))))


def why_no_stacks() -> str:
    """Return why the stacks of other threads cannot be read; empty if they can."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return "" if has_lock else "this interpreter runs without its global lock: stacks change while they are read"


class Stack(NamedTuple):
    """The stack of one sample, without frames, which would keep variables alive.

    Attributes:
        lines: The user's frames below Lightning's outermost frame, outermost first.
        below: The frame that the innermost of them called; None if it called none.
        leaf: Owner of the running code: ``"user"``, ``"operator"``, ``"lightning"`` or ``"other"``.
        inner: The running frame, if it is a library's that may call torch operators itself; else None.
    """

    lines: tuple[Position, ...]
    below: CodeType | None
    leaf: str
    inner: Position | None = None


class _Known(NamedTuple):
    """What a stack's reader remembers of a code object, which it keeps alive so that no other one gets its address.

    Attributes:
        owner: As in ``Stack.leaf``; empty for PerfDoctor's own, skipped as in a run without PerfDoctor.
        role: Its name, if it calls modules, is a module's forward or decorates functions; else empty.
    """

    code: CodeType
    owner: str
    role: str


class StackReader:
    """Reader of stacks, with a cache of the owners of code."""

    def __init__(self) -> None:
        self.globals_of: dict[CodeType, dict[str, Any]] = {}
        """Global names seen by the user's code, and by library code that may call torch operators."""
        self.loops: set[CodeType] = set()
        """The user's functions that loop over steps without a Trainer."""
        self.modules: dict[CodeType, str] = {}
        """Modules of the functions that the user's lines call."""
        self._known: dict[int, _Known] = {}  # by address: to hash code takes longer than the rest of a look-up

    def read(self, frames: Iterable[Frame]) -> Stack | None:
        """Return the stack of these frames, given innermost first; None if neither Lightning nor a loop is on it."""
        leaf = ""
        running: Position | None = None
        below: CodeType | None = None
        inner: tuple[CodeType, dict[str, Any]] | None = None
        forward: tuple[CodeType, dict[str, Any]] | None = None
        pending: list[Position] = []
        n_confirmed = 0
        is_below_lightning = False
        for code, offset, names in frames:
            _, owner, role = self._known.get(id(code)) or self._learn(code, names)
            if not owner:
                continue
            if not leaf:
                leaf = owner
                if owner == OTHER and "torch" in names:
                    running = code, offset, line_of(code, offset)
                    self.globals_of[code] = names
            if owner == USER:
                if not pending and inner is not None:
                    below, names_below = inner
                    if below not in self.modules:
                        self.modules[below] = str(names_below.get("__name__", ""))
                pending.append((code, offset, line_of(code, offset)))
                if code not in self.globals_of:
                    self.globals_of[code] = names
                if code in self.loops:
                    n_confirmed = len(pending)
                    is_below_lightning = True
            elif owner == LIGHTNING:
                n_confirmed = len(pending)  # frames outside of all of Lightning's only started the run
                is_below_lightning = True
            if not role:
                inner = code, names
            elif role == _FORWARD:
                inner = forward = code, names
            elif role != _DECORATOR and forward is not None:
                inner, forward = forward, None
        if not is_below_lightning:
            return None
        return Stack(tuple(reversed(pending[:n_confirmed])), below if n_confirmed else None, leaf, running)

    def _learn(self, code: CodeType, names: dict[str, Any]) -> _Known:
        owner = ""
        if not names.get("__name__", "").startswith(_OURS):
            file = code.co_filename
            if not file or file[0] == "<":  # compiled from text for a module, as methods of dataclasses are
                file = names.get("__file__") or file
            owner = _owner(file)
        if len(self._known) >= _MAX_CODES:
            self._known.clear()  # a training that compiles code in each step
        known = self._known[id(code)] = _Known(code, owner, code.co_name if code.co_name in _ROLES else "")
        return known


def _owner(file: str) -> str:
    owner = owner_of(file)
    if owner in (TORCH, COMPILED):
        is_torch = owner == COMPILED or f"{os.sep}torch{os.sep}" in file
        return OPERATOR if is_torch and not any(part in file for part in _NO_OPERATORS) else OTHER
    return owner
