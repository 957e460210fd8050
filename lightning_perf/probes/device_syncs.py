"""Synchronizing calls of one step, by torch's own warnings.

``torch.cuda.set_sync_debug_mode("warn")`` makes torch warn at each of its synchronizing calls, with the line on the
stack. This does not synchronize anything.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .code_lines import CodeLines, Place

_MESSAGE = "called a synchronizing"
_PROTOTYPE = "Synchronization debug mode is a prototype"


def sync_debug_of(device: torch.device) -> Any:
    """Return the module with the device's synchronization debug mode; None if there is none."""
    return torch.cuda if device.type == "cuda" else None


class DeviceWarnings:
    """Counts synchronization warnings of one step by line, and passes all other warnings on."""

    def __init__(self, debug: Any) -> None:
        self.n_by_place: dict[Place, int] = {}
        self.reason = ""
        self._debug = debug
        self._lines = CodeLines()
        self._catch: warnings.catch_warnings[None] | None = None
        self._before = 0

    def open(self) -> bool:
        """Begin the step; return False if the user has set the mode, with ``reason``."""
        self._before = int(self._debug.get_sync_debug_mode())
        if self._before:
            self.reason = f"torch.cuda.set_sync_debug_mode is {self._before} already: it is left as it is"
            return False
        self._catch = warnings.catch_warnings()  # first: an interrupt may come right after entering
        self._catch.__enter__()
        warnings.filterwarnings("always", message=f".*{_MESSAGE}.*")
        warnings.filterwarnings("ignore", message=f".*{_PROTOTYPE}.*")
        shows = warnings.showwarning
        warnings.showwarning = self._shower(shows)
        try:
            self._debug.set_sync_debug_mode(1)
        except Exception:
            self.close()
            raise
        return True

    def close(self) -> None:
        """End the step; restore mode and filters. Can be called twice."""
        catch = self._catch
        if catch is None:
            return
        try:
            self._debug.set_sync_debug_mode(self._before)
        finally:
            with contextlib.suppress(RuntimeError):  # an interrupt came before it was entered
                catch.__exit__(None, None, None)
            self._catch = None

    def _shower(self, shows: Callable[..., Any]) -> Callable[..., None]:
        def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            if _MESSAGE in str(message):
                place = self._lines.place()
                self.n_by_place[place] = self.n_by_place.get(place, 0) + 1
            else:
                shows(message, category, filename, lineno, file, line)

        return show
