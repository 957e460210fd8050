"""Pauses of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable


class GarbagePauses:
    """Adds up what collections take, through ``gc.callbacks``.

    Args:
        now_ns: The host's clock.
        is_counted: Whether what is measured has begun; asked when a collection starts.
    """

    def __init__(self, now_ns: Callable[[], int], is_counted: Callable[[], bool] = lambda: True) -> None:
        self.total_ns = 0
        self._now_ns = now_ns
        self._is_counted = is_counted
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
            self._started_ns = self._now_ns() if self._is_counted() else 0
        elif self._started_ns:
            self.total_ns += self._now_ns() - self._started_ns
            self._started_ns = 0
