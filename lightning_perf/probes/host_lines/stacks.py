"""Read a thread's stack: the user's lines below Lightning, and what runs below them."""

from __future__ import annotations

import os
from types import CodeType, FrameType
from typing import Any, NamedTuple

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
        self.modules: dict[CodeType, str] = {}
        """Modules of the functions that the user's lines call."""
        self._owners: dict[str, str] = {}

    def read(self, frame: FrameType | None) -> Stack | None:
        """Return the stack above its innermost frame; None if Lightning is not on it."""
        leaf = ""
        below: CodeType | None = None
        inner: FrameType | None = None
        pending: list[Visit] = []
        n_confirmed = 0
        is_below_lightning = False
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith(_OURS):  # as if it was not there
                frame = frame.f_back
                continue
            code = frame.f_code
            file = code.co_filename
            if file[0] == "<":  # generated for a module, as methods of dataclasses are
                file = frame.f_globals.get("__file__") or file
            owner = self._owners.get(file) or self._owner(file)
            leaf = leaf or owner
            if owner == USER:
                if not pending and inner is not None:
                    below = inner.f_code
                    if below not in self.modules:
                        self.modules[below] = str(inner.f_globals.get("__name__", ""))
                pending.append((code, frame.f_lasti, frame.f_lineno or 0))
                if code not in self.globals_of:
                    self.globals_of[code] = frame.f_globals
            elif owner == LIGHTNING:
                n_confirmed = len(pending)  # frames further out than all of Lightning's only started the run
                is_below_lightning = True
            if code.co_name not in _MODULE_CALLS:
                inner = frame
            frame = frame.f_back
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
