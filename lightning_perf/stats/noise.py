"""The change that counts as noise, from runs of one arm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .estimates import MIN_RUNS, MIN_RUNS_FOR_DRIFT, Runs, drift, levels

MIN_BAND = 0.01
"""Smallest band: machines with other processes vary by 1 %."""

_LARGEST = 10.0  # of the logarithm: a factor of 22,000 is as good as any
_REACH = 1.959964 * math.sqrt(2)  # standard deviations that a difference of two normal values exceeds 1 time in 20


def noise_band(runs: Runs, at: Sequence[float] | None = None) -> float:
    """Return the relative difference that two runs of the same training stay within in 19 of 20 cases.

    It is a property of the machine and the training, so it does not shrink with more runs as an interval does. At least
    ``MIN_BAND``, also with too few runs.

    Args:
        runs: Block means of both halves of the A/A pair, by run.
        at: Positions of the runs in the order of all runs; with ``MIN_RUNS_FOR_DRIFT`` runs, drift is removed.
    """
    logs = levels(runs)
    n, n_fitted = len(logs), 1
    if n < MIN_RUNS:
        return MIN_BAND
    if at is not None and n >= MIN_RUNS_FOR_DRIFT:
        places = np.asarray(at, dtype=np.float64)
        logs, n_fitted = logs - drift([(logs, places)]) * (places - places.mean()), 2
    deviation = math.sqrt(float(((logs - logs.mean()) ** 2).sum()) / (n - n_fitted))
    return max(MIN_BAND, math.expm1(min(_LARGEST, _REACH * deviation)))
