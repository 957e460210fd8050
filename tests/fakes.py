"""Fake clock, device and allocator that tests drive by hand."""

from __future__ import annotations

from lightning_perf.probes.memory.phase_memory import Allocator, AllocatorReading


class FakeClock:
    """A host clock that moves only when advanced; call it to read it."""

    def __init__(self, start_ns: int = 0) -> None:
        self.now = start_ns

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += round(seconds * 1e9)


class FakeDevice:
    """An asynchronous device on a ``FakeClock``: work is queued and done in order, as on a CUDA stream."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.free_at_ns = 0

    def launch(self, seconds: float) -> None:
        """Queues work; returns at once."""
        self.free_at_ns = max(self.free_at_ns, self.clock.now) + round(seconds * 1e9)

    def event(self) -> FakeEvent:
        """A new event of this device."""
        return FakeEvent(self)


class FakeEvent:
    """An event of a ``FakeDevice``; reading one that was not reached raises, as a CUDA event does."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._reached_at_ns: int | None = None

    def record(self) -> None:
        """Puts the mark behind the work queued so far."""
        self._reached_at_ns = max(self._device.free_at_ns, self._device.clock.now)

    def query(self) -> bool:
        """Whether the device has reached it."""
        return self._reached_at_ns is not None and self._reached_at_ns <= self._device.clock.now

    def elapsed_time(self, end: FakeEvent, /) -> float:
        """Milliseconds to ``end``."""
        if not (self.query() and end.query()):
            raise RuntimeError("device not ready")
        assert self._reached_at_ns is not None
        assert end._reached_at_ns is not None
        return (end._reached_at_ns - self._reached_at_ns) / 1e6


class FakeAllocator(Allocator):
    """A fake caching allocator: blocks of fixed size are held until freed, up to a limit."""

    def __init__(self, device: str = "cuda:0", total_bytes: int = 16 * 2**30) -> None:
        self.device = device
        self.total_bytes: int | None = total_bytes
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.inactive_split = 0
        self.n_retries = self.n_ooms = 0
        self.n_reads = 0

    def allocate(self, n_bytes: int, fragmented_bytes: int = 0) -> None:
        """Takes memory; ``fragmented_bytes`` of the cache cannot serve it."""
        needed = self.allocated + n_bytes
        self.inactive_split = max(self.inactive_split, fragmented_bytes)
        if needed + fragmented_bytes > (self.total_bytes or 0):
            self.n_retries += 1
            fragmented_bytes = 0
        if needed > (self.total_bytes or 0):
            self.n_ooms += 1
            raise MemoryError(f"{self.device}: {n_bytes} bytes do not fit")
        self.allocated = needed
        self.reserved = max(self.reserved, needed + fragmented_bytes)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def free(self, n_bytes: int) -> None:
        """Gives memory back to the cache, which keeps it."""
        self.allocated -= n_bytes

    def read(self) -> AllocatorReading:
        """Its state now."""
        self.n_reads += 1
        return AllocatorReading(
            self.allocated,
            self.reserved,
            self.peak_allocated,
            self.peak_reserved,
            self.inactive_split,
            self.n_retries,
            self.n_ooms,
        )
