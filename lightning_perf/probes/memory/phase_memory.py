"""Memory at the ends of phases in sampled steps: of the process, and of the device's caching allocator.

Reading the allocator's statistics never waits for the device.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from lightning_perf.records import HostPhaseMemory, PhaseMemory

from .host_memory import ResidentMemory

_PHASES = ("transfer", "forward", "zero_grad", "backward", "optimizer")
_MAX_KEPT = 64


class AllocatorReading(NamedTuple):
    """The allocator at one moment, in bytes; None if unknown.

    ``reserved`` is held from the driver. Peaks count from the start of the process or the user's reset. ``n_retries``
    are flushes of the cache to satisfy a request, ``n_ooms`` requests that failed. ``peak_inactive_split`` is the
    highest sum of free parts of blocks in use.
    """

    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    peak_inactive_split: int | None = None
    n_retries: int | None = None
    n_ooms: int | None = None


class Allocator:
    """The allocator of a torch device.

    ``statistics`` returns torch's nested statistics: ``{"allocated_bytes": {"all": {"current": …, "peak": …}}}``.
    """

    def __init__(
        self, device: Any, statistics: Callable[[], Mapping[str, Any]], total_bytes: int | None = None
    ) -> None:
        self.device = str(device)
        self.total_bytes = total_bytes
        self._statistics = statistics

    def read(self) -> AllocatorReading:
        """Return the current state; None, or 0 for a required figure, for what the backend does not report."""
        statistics = self._statistics()
        allocated, reserved = _pool(statistics, "allocated_bytes"), _pool(statistics, "reserved_bytes")
        return AllocatorReading(
            allocated=allocated.get("current", 0),
            reserved=reserved.get("current", 0),
            peak_allocated=allocated.get("peak", 0),
            peak_reserved=reserved.get("peak", 0),
            peak_inactive_split=_pool(statistics, "inactive_split_bytes").get("peak"),
            n_retries=statistics.get("num_alloc_retries"),
            n_ooms=statistics.get("num_ooms"),
        )


def _pool(statistics: Mapping[str, Any], name: str) -> Mapping[str, int]:
    value: Mapping[str, int] = statistics.get(name, {}).get("all", {})
    return value


def allocator_of(device: Any) -> tuple[Allocator | None, str]:
    """Return the allocator of the device trained on and an empty reason, or None and why there is none."""
    if device.type == "cpu":
        return None, "the CPU's allocator keeps no statistics; see resident memory"
    backend = getattr(torch, device.type, None)
    # Nested as the allocator gives it: flattening and sorting the names costs several times the reading.
    statistics = getattr(backend, "memory_stats_as_nested_dict", None)
    if statistics is None:
        return None, f"torch {torch.__version__} keeps no allocator statistics for {device.type}"
    properties = getattr(backend, "get_device_properties", lambda _: None)(device)
    return Allocator(device, lambda: statistics(device), getattr(properties, "total_memory", None)), ""


class PhaseReadings:
    """Readings at the ends of phases in sampled steps."""

    def __init__(self, allocator: Allocator | None, own: ResidentMemory) -> None:
        self.peak_phase: str | None = None
        self.sizes: deque[tuple[int, int]] = deque(maxlen=_MAX_KEPT)
        """``(samples, bytes allocated after forward)`` of sampled steps."""
        self._allocator = allocator
        self._own = own
        self._rss: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_MAX_KEPT))
        self._device: defaultdict[str, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=_MAX_KEPT))
        self._peaks: dict[str, int] = {}
        self._last_peak = 0
        self._size: int | None = None

    def begin(self, batch_size: int | None) -> None:
        """Begin a sampled step."""
        self._size = batch_size
        self._last_peak = 0

    def read(self, phase: str) -> None:
        """Read memory at the end of a phase."""
        rss = self._own.read()
        if rss is not None:
            self._rss[phase].append(rss)
        if self._allocator is None:
            return
        reading = self._allocator.read()
        self._device[phase].append((reading.allocated, reading.reserved))
        # At the start of a sampled step it is unknown what raised the peak.
        if self._last_peak and reading.peak_allocated > self._last_peak:
            self._peaks[phase] = reading.peak_allocated
            self.peak_phase = phase
        self._last_peak = reading.peak_allocated
        if phase == "forward" and self._size:
            self.sizes.append((self._size, reading.allocated))

    def host_phases(self) -> tuple[HostPhaseMemory, ...]:
        """Return medians of the host's memory by phase."""
        return tuple(
            HostPhaseMemory(phase=p, n=len(self._rss[p]), rss_bytes=int(statistics.median(self._rss[p])))
            for p in _PHASES
            if p in self._rss
        )

    def device_phases(self) -> tuple[PhaseMemory, ...]:
        """Return medians of the device's memory by phase."""
        return tuple(
            PhaseMemory(
                phase=p,
                n=len(self._device[p]),
                allocated_bytes=int(statistics.median(a for a, _ in self._device[p])),
                reserved_bytes=int(statistics.median(r for _, r in self._device[p])),
                peak_bytes=self._peaks.get(p),
            )
            for p in _PHASES
            if p in self._device
        )
