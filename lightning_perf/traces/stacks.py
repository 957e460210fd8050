"""Which line of the user's code was running, from recorded Python calls."""

from __future__ import annotations

import dataclasses
import re
import sys
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .intervals import Times
from .kinds import PYTHON
from .nesting import Nesting, Rows
from .timeline import Timeline

_FRAME: Final = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)
_LIBRARIES: Final = frozenset(
    name
    for names in (
        ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "torchmetrics"),
        ("torchvision", "lightning_perf", "numpy", "triton", "importlib", "multiprocessing", "concurrent", "asyncio"),
        ("unittest", "_pytest", "pytest", "pluggy", "xdist", "execnet", "hypothesis", "typer", "click"),
    )
    for name in names
)
# Names that users give to their own scripts as well.
_STANDARD_FILES: Final = frozenset(sys.stdlib_module_names) - {
    "code",
    "profile",
    "test",
    "site",
    "this",
    "cmd",
    "types",
}
_INSTALLED: Final = re.compile(r"site-packages/|dist-packages/|/lib/python3\.\d+/|^<|^lib/python3")


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in the user's code.

    Attributes:
        place: ``file:line``, where the line is that of the function (the profiler records calls, not lines).
        function: Its name.
        frame: Row of the call, -1 where only a text was recorded.
    """

    place: str
    function: str
    frame: int = -1


@lru_cache(maxsize=65_536)
def user_site(frame: str) -> tuple[str, str] | None:
    """``(file:line, function)`` of a recorded frame; None where it belongs to torch, Lightning or another library."""
    match = _FRAME.match(frame)
    if match is None:
        return None
    file = match["file"].replace("\\", "/")
    if not file or _INSTALLED.search(file):
        return None
    root = file.lstrip("./").split("/")[0]
    is_standard = root.removesuffix(".py") in _STANDARD_FILES and not file.startswith(("/", "./"))
    if root.removesuffix(".py") in _LIBRARIES or is_standard:
        return None
    return f"{file}:{match['line']}", match["function"]


@lru_cache(maxsize=4_096)
def _site_of_stack(stack: str) -> Site | None:
    """The innermost frame of the user in a stack written as one text; a trace repeats few stacks many times."""
    for frame in stack.split(";"):
        found = user_site(frame.strip())
        if found:
            return Site(*found)
    return None


class Stacks:
    """Finds the user's innermost function at a moment."""

    def __init__(self, timeline: Timeline) -> None:
        self._trace = trace = timeline.trace
        rows = trace.rows_named(trace.rows(PYTHON), lambda name: user_site(name) is not None)
        self._threads: dict[int, tuple[Rows, Nesting]] = {}
        ids = trace.thread_ids[rows]
        for thread in np.flatnonzero(np.bincount(ids)).tolist():
            own = rows[ids == thread]
            self._threads[thread] = (own, Nesting(trace.starts[own], trace.ends[own]))

    def frames(self, threads: npt.NDArray[Any], moments: Times) -> Rows:
        """For each thread and moment the row of the user's innermost call, -1 for none."""
        found = np.full(len(moments), -1, dtype=np.int64)
        for thread, (rows, tree) in self._threads.items():
            asked = np.flatnonzero(threads == thread)
            if len(asked):
                index = tree.innermost(moments[asked])
                found[asked] = np.where(index >= 0, rows[index], -1)
        return found

    def sites(self, rows: Rows) -> list[Site | None]:
        """For each event the user's code that made it; None where that was not recorded."""
        trace = self._trace
        frames = self.frames(trace.thread_ids[rows], trace.starts[rows])
        return [
            self._of_frame(frame) if frame >= 0 else self._of_text(row)
            for row, frame in zip(rows.tolist(), frames.tolist(), strict=True)
        ]

    def _of_frame(self, frame: int) -> Site | None:
        found = user_site(self._trace.name(frame))
        return Site(*found, frame=frame) if found else None

    def _of_text(self, row: int) -> Site | None:
        """Torch 1.8 to 1.11 wrote the stack into the operator's arguments, innermost first."""
        details = self._trace.details.get(row)
        return None if details is None or not isinstance(details.stack, str) else _site_of_stack(details.stack)
