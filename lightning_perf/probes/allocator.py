"""What a device's caching allocator tells of itself; reading it never waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol


class AllocatorReading(NamedTuple):
    """The allocator at one moment, in bytes.

    Attributes:
        allocated: In live tensors.
        reserved: Held from the driver.
        peak_allocated: Highest since the process began or the user last reset it.
        peak_reserved: Likewise.
        peak_inactive_split: Free parts of blocks in use, highest; None when not told.
        n_retries: Flushes of the cache to satisfy a request; None when not told.
        n_ooms: Requests that failed; None when not told.
    """

    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    peak_inactive_split: int | None = None
    n_retries: int | None = None
    n_ooms: int | None = None


class Allocator(Protocol):
    """A device's allocator."""

    device: str
    """E.g. ``"cuda:0"``."""
    total_bytes: int | None
    """The device's memory; None when not told."""

    def read(self) -> AllocatorReading:
        """Its state now."""


class TorchAllocator:
    """The allocator of a torch device.

    Args:
        device: The ``torch.device``.
        statistics: Gives torch's nested statistics: ``{"allocated_bytes": {"all": {"current": …, "peak": …}}}``.
        total_bytes: The device's memory; None when not told.
    """

    def __init__(
        self, device: Any, statistics: Callable[[], Mapping[str, Any]], total_bytes: int | None = None
    ) -> None:
        self.device = str(device)
        self.total_bytes = total_bytes
        self._statistics = statistics

    def read(self) -> AllocatorReading:
        """Its state now; what the backend does not tell is None, or 0 where there must be a figure."""
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
    """The allocator of a device.

    Args:
        device: The ``torch.device`` trained on; it is in use, so asking it initialises nothing.

    Returns:
        The allocator and an empty reason, or None and why there is none.
    """
    import torch

    if device.type == "cpu":
        return None, "the CPU has no allocator that keeps statistics: resident memory says what is used"
    if device.type == "cuda":
        total_bytes = int(torch.cuda.get_device_properties(device).total_memory)
        # Nested as the allocator gives it: flattening and sorting the names costs several times the reading.
        return TorchAllocator(device, lambda: torch.cuda.memory_stats_as_nested_dict(device), total_bytes), ""
    backend = getattr(torch, device.type, None)
    statistics = getattr(backend, "memory_stats_as_nested_dict", None)
    if statistics is None:
        return None, f"torch {torch.__version__} keeps no allocator statistics for {device.type}"
    properties = getattr(backend, "get_device_properties", lambda _: None)(device)
    return TorchAllocator(device, lambda: statistics(device), getattr(properties, "total_memory", None)), ""


class FakeAllocator:
    """A made-up caching allocator: blocks of fixed size are held until told otherwise, and a cap can run out."""

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
