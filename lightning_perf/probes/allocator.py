"""Statistics of a device's caching allocator; reading them never waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class AllocatorReading(NamedTuple):
    """The allocator at one moment, in bytes; None if unknown.

    Attributes:
        allocated: In live tensors.
        reserved: Held from the driver.
        peak_allocated: Highest since the process began or the user reset it.
        peak_reserved: Likewise.
        peak_inactive_split: Highest sum of free parts of blocks in use.
        n_retries: Flushes of the cache to satisfy a request.
        n_ooms: Requests that failed.
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
        """Return its current state; None, or 0 if a figure is required, for what the backend does not report."""
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
    import torch

    if device.type == "cpu":
        return None, "the CPU's allocator keeps no statistics; see resident memory"
    if device.type == "cuda":
        total_bytes = int(torch.cuda.get_device_properties(device).total_memory)
        # Nested as the allocator gives it: flattening and sorting the names costs several times the reading.
        return Allocator(device, lambda: torch.cuda.memory_stats_as_nested_dict(device), total_bytes), ""
    backend = getattr(torch, device.type, None)
    statistics = getattr(backend, "memory_stats_as_nested_dict", None)
    if statistics is None:
        return None, f"torch {torch.__version__} keeps no allocator statistics for {device.type}"
    properties = getattr(backend, "get_device_properties", lambda _: None)(device)
    return Allocator(device, lambda: statistics(device), getattr(properties, "total_memory", None)), ""
