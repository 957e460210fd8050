"""Reads what memory is in use; nothing here waits for a device or resets a peak."""

from __future__ import annotations

import os
import sys
from typing import Any

import psutil

from lightning_perf.records import DeviceMemory, Memory


def read_memory(device: Any) -> Memory:
    """Memory of this process and of the device that it trains on.

    Args:
        device: The ``torch.device``.

    Returns:
        The record; ``devices`` is empty on a CPU run.
    """
    return Memory(
        devices=_device_memory(device),
        host_rss_bytes=psutil.Process(os.getpid()).memory_info().rss,
        host_peak_rss_bytes=_peak_rss_bytes(),
    )


def _device_memory(device: Any) -> tuple[DeviceMemory, ...]:
    import torch

    if device.type != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    statistics = torch.cuda.memory_stats(device)
    return (
        DeviceMemory(
            device=str(device),
            peak_allocated_bytes=statistics.get("allocated_bytes.all.peak", 0),
            peak_reserved_bytes=statistics.get("reserved_bytes.all.peak", 0),
            total_bytes=torch.cuda.get_device_properties(device).total_memory,
            alloc_retries=statistics.get("num_alloc_retries"),
        ),
    )


def _peak_rss_bytes() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
