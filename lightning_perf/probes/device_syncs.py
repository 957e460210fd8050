"""Synchronising calls as the device's own driver code names them, during one step.

``torch.cuda.set_sync_debug_mode("warn")`` makes torch warn at each synchronising call of its own. The warning is given
where the call is made, so that the line is on the stack. Nothing is synchronised by asking.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch

from .code_lines import CodeLines, Place

_MESSAGE = "called a synchronizing"
_PROTOTYPE = "Synchronization debug mode is a prototype"


class SyncDebug(Protocol):
    """What makes torch warn."""

    def get(self) -> int:
        """The mode as it is: 0 off, 1 warn, 2 error."""

    def set(self, mode: int) -> None:
        """Changes it."""


class CudaSyncDebug:
    """Torch's own, for CUDA and ROCm."""

    def get(self) -> int:
        """The mode as it is."""
        return int(torch.cuda.get_sync_debug_mode())

    def set(self, mode: int) -> None:
        """Changes it."""
        torch.cuda.set_sync_debug_mode(mode)


def sync_debug_of(device: torch.device) -> SyncDebug | None:
    """The mode of a device; None where it has none."""
    return CudaSyncDebug() if device.type == "cuda" else None


class DeviceWarnings:
    """Counts the warnings of one step by line, and lets all others through as they would have come.

    Args:
        debug: What makes torch warn.
    """

    def __init__(self, debug: SyncDebug) -> None:
        self.n_by_place: dict[Place, int] = {}
        self.reason = ""
        self._debug = debug
        self._lines = CodeLines()
        self._catch: warnings.catch_warnings[None] | None = None
        self._before = 0

    def open(self) -> bool:
        """The step begins; False where the user has set the mode, and ``reason`` says so."""
        self._before = self._debug.get()
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
            self._debug.set(1)
        except Exception:
            self.close()
            raise
        return True

    def close(self) -> None:
        """The step is over: puts back mode and filters; twice does no harm."""
        catch = self._catch
        if catch is None:
            return
        try:
            self._debug.set(self._before)
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
