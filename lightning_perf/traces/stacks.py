"""Find the user's code that was running, from recorded Python calls."""

import dataclasses
import re
import sys
from functools import lru_cache
from typing import Final

from .kinds import PYTHON
from .nesting import Rows
from .timeline import Timeline, innermost_at, trees_by_thread

_FRAME: Final = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)$", re.DOTALL)
_LIBRARIES: Final = frozenset({
    "torch", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "torchmetrics", "torchvision",
    "lightning_perf", "numpy", "triton", "importlib", "multiprocessing", "concurrent", "asyncio", "unittest", "_pytest",
    "pytest", "pluggy", "xdist", "execnet", "hypothesis", "typer", "click",
})  # fmt: skip
# Without names that users also give to their own scripts.
_OWN_NAMES: Final = {"code", "profile", "test", "site", "this", "cmd", "types"}
_STANDARD_FILES: Final = frozenset(sys.stdlib_module_names) - _OWN_NAMES
_INSTALLED: Final = re.compile(r"site-packages/|dist-packages/|/lib/python3\.\d+/|^<|^lib/python3")


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in the user's code.

    Attributes:
        place: ``file:line``, where the line is that of the function (the profiler records calls, not lines).
        frame: Row of the call, -1 where only a text was recorded.
    """

    place: str
    function: str
    frame: int = -1


@lru_cache(maxsize=65_536)
def user_site(frame: str) -> tuple[str, str] | None:
    """Return ``(file:line, function)`` of a recorded frame; None if it belongs to torch, Lightning or a library."""
    match = _FRAME.match(frame)
    if match is None:
        return None
    file = match["file"].replace("\\", "/")
    if not file or _INSTALLED.search(file):
        return None
    # The profiler writes paths of modules from their package on, so an absolute path may begin with any folder.
    root = file.lstrip("./").split("/")[0].removesuffix(".py")
    is_standard = root in _STANDARD_FILES and not file.startswith("./")
    if not file.startswith("/") and (root in _LIBRARIES or is_standard):
        return None
    return f"{file}:{match['line']}", match["function"]


@lru_cache(maxsize=4_096)
def _site_of_stack(stack: str) -> Site | None:
    """Return the user's innermost frame in a stack given as text, innermost first; traces repeat few stacks often."""
    for frame in stack.split(";"):
        found = user_site(frame.strip())
        if found:
            return Site(*found)
    return None


class Stacks:
    """Finds the user's innermost function for events."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._trace = trace = timeline.trace
        rows = trace.rows_named(trace.rows(PYTHON), user_site)
        self._threads = trees_by_thread(trace, rows)

    def sites(self, rows: Rows) -> list[Site | None]:
        """Return the user's code that caused each event; None if it was not recorded."""
        trace = self._trace
        frames = innermost_at(self._threads, trace.thread_ids[rows], trace.starts[rows])
        return [
            self._of_frame(frame) if frame >= 0 else self._of_text(row)
            for row, frame in zip(rows.tolist(), frames.tolist(), strict=True)
        ]

    def places(self, rows: Rows) -> list[tuple[str, str]]:
        """Return the place and function of the user's code for each call, else the name of its operator or its own."""
        operators = self._timeline.operators_at(self._trace.thread_ids[rows], self._trace.starts[rows])
        places = []
        for row, operator, site in zip(rows.tolist(), operators.tolist(), self.sites(rows), strict=True):
            site = site or self._of_text(operator)
            name = self._trace.name(operator if operator >= 0 else row)
            places.append((site.place, site.function) if site else (name, ""))
        return places

    def _of_frame(self, frame: int) -> Site | None:
        found = user_site(self._trace.name(frame))
        return Site(*found, frame=frame) if found else None

    def _of_text(self, row: int) -> Site | None:
        """Return the user's code in the stack that torch 1.8 to 1.11 wrote into an operator's arguments."""
        details = self._trace.details.get(row)
        return None if details is None or not isinstance(details.stack, str) else _site_of_stack(details.stack)
