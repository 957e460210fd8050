"""Reads an AMD device through torch's functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_perf.records import GpuTelemetry

from .series import Series

MOST_POWER_W = 5000.0
"""No device draws as much: torch documents milliwatts, and up to 2.13 hands on amdsmi's watts."""


class TorchReader:
    """Samples an AMD device through torch's functions, which ask amdsmi.

    Args:
        cuda: ``torch.cuda``, or a stand-in.
        index: torch's.
        name: The device's.
        memory_total_bytes: Its memory.
    """

    def __init__(self, cuda: Any, index: int, name: str, memory_total_bytes: int) -> None:
        self.device = f"cuda:{index}"
        self.lost_reason = ""
        self._missing: dict[str, str] = {}
        self._cuda, self._index = cuda, index
        self._name, self._memory_total_bytes = name, memory_total_bytes
        self._series: dict[str, Series] = {}
        self._n_samples = 0

    @property
    def missing(self) -> dict[str, str]:
        return dict(self._missing)

    def close(self) -> None:
        """torch keeps amdsmi for itself."""

    def read(self) -> dict[str, float]:
        sample = {}
        for metric, function, factor in _TORCH_FUNCTIONS:
            if metric in self._missing:
                continue
            try:
                value = float(getattr(self._cuda, function)(self._index)) * factor
            except Exception as error:  # noqa: BLE001 - told in missing; amdsmi has errors of many kinds
                self._missing[metric] = f"torch.cuda.{function}: {type(error).__name__}: {error}"
                continue
            if metric != "power_w":
                sample[metric] = value
            elif value > 0:  # torch gives 0 for what amdsmi does not tell
                sample[metric] = value / 1e3 if value > MOST_POWER_W else value
        return sample

    def add(self, sample: Mapping[str, float], weight_s: float) -> None:
        self._n_samples += bool(sample)
        for name, value in sample.items():
            self._series.setdefault(name, Series()).add(value, weight_s)

    def record(self) -> GpuTelemetry:
        spreads: dict[str, Any] = {name: series.spread() for name, series in self._series.items()}
        return GpuTelemetry(
            device=self.device,
            name=self._name,
            source="torch",
            matched_by="index",
            n_samples=self._n_samples,
            memory_total_bytes=self._memory_total_bytes,
            **spreads,
        )


# By torch's documentation: percent, percent, milliwatts (in truth amdsmi's watts), degrees Celsius, MHz, bytes.
_TORCH_FUNCTIONS = (
    ("utilisation_fraction", "utilization", 0.01),
    ("memory_utilisation_fraction", "memory_usage", 0.01),
    ("power_w", "power_draw", 1.0),
    ("temperature_c", "temperature", 1.0),
    ("sm_clock_mhz", "clock_rate", 1.0),
    ("memory_used_bytes", "device_memory_used", 1.0),
)
