"""Memory at the ends of phases in sampled steps."""

from __future__ import annotations

import statistics

from lightning_perf.records import HostPhaseMemory, PhaseMemory

from .allocator import Allocator
from .host_memory import ResidentMemory

_PHASES = ("transfer", "forward", "zero_grad", "backward", "optimizer")
_MAX_KEPT = 64


class PhaseReadings:
    """Readings at the ends of phases in sampled steps."""

    def __init__(self, allocator: Allocator | None, own: ResidentMemory) -> None:
        self.peak_phase: str | None = None
        self.sizes: list[tuple[int, int]] = []
        """``(samples, bytes allocated after forward)`` of sampled steps."""
        self._allocator = allocator
        self._own = own
        self._rss: dict[str, list[int]] = {}
        self._device: dict[str, list[tuple[int, int]]] = {}
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
            self._rss.setdefault(phase, []).append(rss)
            del self._rss[phase][:-_MAX_KEPT]
        if self._allocator is None:
            return
        reading = self._allocator.read()
        self._device.setdefault(phase, []).append((reading.allocated, reading.reserved))
        del self._device[phase][:-_MAX_KEPT]
        # At the start of a sampled step it is unknown what raised the peak.
        if self._last_peak and reading.peak_allocated > self._last_peak:
            self._peaks[phase] = reading.peak_allocated
            self.peak_phase = phase
        self._last_peak = reading.peak_allocated
        if phase == "forward" and self._size:
            self.sizes.append((self._size, reading.allocated))
            del self.sizes[:-_MAX_KEPT]

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
