"""Stopwatches for replays: the host's clock, and a device's events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from lightning_perf.probes.clock import DeviceEvent

_PATIENCE_S = 30.0


class Stopwatch(Protocol):
    """Marks moments; the time between two of them is read later."""

    def mark(self) -> Any:
        """Return a mark behind all work started so far."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two marks; waits until the second is reached."""


class HostWatch:
    """The host's clock, for operators that run on the CPU."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.mark = now_ns

    def seconds(self, begin: int, end: int) -> float:
        """Return the seconds between two readings."""
        return (end - begin) / 1e9


class DeviceWatch:
    """Events in the device's queue.

    Args:
        make_event: Makes an event that measures time, as ``DeviceClock.make_event`` does.
    """

    def __init__(self, make_event: Callable[[], DeviceEvent]) -> None:
        self._make_event = make_event

    def mark(self) -> DeviceEvent:
        """Return an event behind all work queued so far."""
        event = self._make_event()
        event.record()
        return event

    def seconds(self, begin: DeviceEvent, end: DeviceEvent) -> float:
        """Return the device's time between two events; polls until the second is reached."""
        until = time.monotonic() + _PATIENCE_S
        while not end.query():
            if time.monotonic() > until:
                raise TimeoutError(f"the device did not finish a replayed operator within {_PATIENCE_S:.0f} s")
            time.sleep(1e-4)
        return begin.elapsed_time(end) / 1e3
