"""What memory was used."""

from __future__ import annotations

from .base import Record


class DeviceMemory(Record, frozen=True, kw_only=True):
    """torch's caching allocator on one device, at its highest during the run.

    Attributes:
        device: E.g. ``"cuda:0"``.
        peak_allocated_bytes: Most bytes in live tensors.
        peak_reserved_bytes: Most bytes held from the driver.
        total_bytes: The device's memory; None when not told.
        alloc_retries: Times the cache had to be flushed to satisfy a request; None when not told.
    """

    device: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    total_bytes: int | None = None
    alloc_retries: int | None = None


class Memory(Record, frozen=True, kw_only=True):
    """Memory of the run. Peaks are read, never reset: a user's own tracking stays as it was.

    Attributes:
        devices: One entry a device in use; empty on a CPU run.
        host_rss_bytes: Resident memory of this process when last read.
        host_peak_rss_bytes: Its highest so far, as the kernel tells; None when it does not.
    """

    devices: tuple[DeviceMemory, ...] = ()
    host_rss_bytes: int | None = None
    host_peak_rss_bytes: int | None = None
