"""Quantiles and moments of streams in constant memory."""

import math

import numpy as np
from numpy.typing import NDArray

from lightning_perf.records import Distribution

RELATIVE_ERROR = 0.01
"""Largest relative error of a quantile (DDSketch's guarantee for logarithmic bins; Masson et al., VLDB 2019)."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)
_LOWEST = 100.0  # ns, less than a clock read takes
_HIGHEST = 1e13  # ns: almost three hours
_N_BINS = math.ceil(math.log(_HIGHEST / _LOWEST) / _LOG_GAMMA) + 2


class LogHistograms:
    """Logarithmic histograms of several series of durations, in constant memory: about 9 kB per series."""

    def __init__(self, n_series: int) -> None:
        self.n_series = n_series
        self.n = 0
        self._counts = np.zeros((n_series, _N_BINS), dtype=np.int64)
        self._offsets = np.arange(n_series, dtype=np.int64) * _N_BINS

    def add(self, durations_ns: NDArray[np.int64]) -> None:
        """Add durations in nanoseconds, shape (rows, n_series)."""
        if durations_ns.shape[0] == 0:
            return
        scaled = np.log(np.maximum(durations_ns, 1) / _LOWEST) / _LOG_GAMMA
        bins = np.clip(np.ceil(scaled).astype(np.int64), 0, _N_BINS - 1)
        flat = np.bincount((bins + self._offsets).ravel(), minlength=self.n_series * _N_BINS)
        self._counts += flat.reshape(self.n_series, _N_BINS)
        self.n += durations_ns.shape[0]

    def quantiles(self, series: int, probabilities: tuple[float, ...]) -> tuple[float, ...]:
        """Return quantiles of one series in nanoseconds, within ``RELATIVE_ERROR``; NaN while the series is empty.

        Values below 100 ns count as 0. Probabilities are in 0…1.
        """
        if self.n == 0:
            return tuple(math.nan for _ in probabilities)
        cumulated = np.cumsum(self._counts[series])
        ranks = [max(1, math.ceil(p * self.n)) for p in probabilities]
        return tuple(_center(int(np.searchsorted(cumulated, rank))) for rank in ranks)


class Moments:
    """Count, mean and standard deviation of durations."""

    def __init__(self) -> None:
        self.n = 0
        self.total_s = 0.0
        self._squares = 0.0

    def add(self, ns: NDArray[np.int64]) -> None:
        """Add durations in nanoseconds."""
        seconds = ns / 1e9
        self.n += len(seconds)
        self.total_s += float(seconds.sum())
        self._squares += float((seconds**2).sum())

    def distribution(self, histograms: LogHistograms, series: int) -> Distribution:
        """Return their distribution, with the quantiles of a series of ``histograms``."""
        p50, p95, p99 = histograms.quantiles(series, (0.5, 0.95, 0.99))
        mean = self.total_s / self.n
        std = max(0.0, self._squares / self.n - mean**2) ** 0.5
        return Distribution(p50=p50 / 1e9, p95=p95 / 1e9, p99=p99 / 1e9, mean=mean, std=std)


def _center(bin_index: int) -> float:
    if bin_index == 0:
        return 0.0
    return float(_LOWEST * 2 * _GAMMA**bin_index / (1 + _GAMMA))
