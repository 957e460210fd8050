"""Pauses of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable


class GarbagePauses:
    """Adds up what collections take, through ``gc.callbacks``.

    Args:
        now_ns: The host's clock.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.total_ns = 0
        self._now_ns = now_ns
        self._started_ns = 0

    def start(self) -> None:
        """Begins to listen."""
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Ends it; calling it twice does no harm."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._started_ns = self._now_ns()
        elif self._started_ns:
            self.total_ns += self._now_ns() - self._started_ns
            self._started_ns = 0
