"""Durations in few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_perf.records.loader_probe import Repeated

# Student's t for a two-sided interval of 95 %, by degrees of freedom from 1; beyond the table about 2. A table, since
# importing scipy into a training for one number takes longer than the number is worth.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def repeated(durations_s: Sequence[float]) -> Repeated | None:
    """Summarises durations; None without any."""
    if not durations_s:
        return None
    values = np.asarray(durations_s, dtype=np.float64)
    p50, p95 = np.quantile(values, (0.5, 0.95))
    return Repeated(
        n=len(values), mean_s=float(values.mean()), p50_s=float(p50), p95_s=float(p95), max_s=float(values.max())
    )


def mean_interval(means: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of independent values by Student's t; a single value is all the interval there is."""
    values = np.asarray(means, dtype=np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean
    t = _T_95[len(values) - 2] if len(values) - 2 < len(_T_95) else 2.0
    reach = t * float(values.std(ddof=1)) / math.sqrt(len(values))
    return max(0.0, mean - reach), mean + reach
