"""Compare the losses of an arm with those of the baseline."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_perf.records import ArmRun, LossVerdict, Safety

MIN_LOSSES = 8
"""Fewest losses that a comparison needs."""

WINDOWS = 16
"""Windows over which a loss curve is averaged: enough to see where two curves part."""

MIN_WINDOW = 4
"""Fewest losses per window: enough to average over batches."""

ROUNDING: dict[Safety, float] = {"exact": 2.0**-23, "numerics": 2.0**-8, "semantics": 2.0**-8}
"""Relative rounding by safety: the machine epsilon of float32, and the largest rounding error (half of the machine
epsilon) of bfloat16, the coarsest of the formats that treatments compute in."""

ROUNDINGS = 8
"""Roundings by which a loss may differ: those of 64 layers add up like a random walk, to the square root of 64."""

BATCH_ERRORS = 3.0
"""Standard errors of a window's mean by which curves may differ if the data came in another order: 3 of them hold
99.7 % of a normal distribution."""

AA_FACTOR = 2.0
"""Factor on the largest A/A difference, because a few runs underestimate it."""

MAX_OUTSIDE = 0.1
"""Fraction of windows that may lie outside the envelope: one in sixteen may do so by chance."""


def loss_parity(runs: Sequence[ArmRun], baseline: Sequence[ArmRun], safety: Safety) -> LossVerdict:
    """Compare the losses of an arm with those of both halves of the A/A pair.

    The seed is the same, so an ``exact`` arm should repeat the baseline's losses digit by digit where the baseline
    repeats its own. If it does not (another order of data, sums in another order), and for ``numerics``, the smoothed
    curve must stay in an envelope around the baseline's: the differences between baseline runs, the expected rounding,
    and the sampling error of a window of batches.

    Returns:
        ``identical``, ``within_noise`` or ``diverged``; ``not_judged`` for ``semantics``, which train differently by
        intent; ``unknown`` without enough losses to compare.
    """
    if safety == "semantics":
        return "not_judged"
    curves, references = _aligned(runs, baseline)
    if len(curves) == 0 or len(references) == 0 or curves.shape[1] < MIN_LOSSES:
        return "unknown"
    if not np.isfinite(references).all():
        return "unknown"
    if all((curve == references).all(axis=1).any() for curve in curves):
        return "identical"
    if not np.isfinite(curves).all():
        return "diverged"
    window = max(MIN_WINDOW, curves.shape[1] // WINDOWS)
    reference = np.median(references, axis=0)
    smooth = _smooth(reference, window)
    allowed = (
        AA_FACTOR * np.abs(_smooth(references, window) - smooth).max(axis=0)
        + ROUNDINGS * ROUNDING[safety] * np.maximum(np.abs(smooth), abs(float(smooth[0])))
        + BATCH_ERRORS * _batch_spread(references) * math.sqrt(2 / window)
    )
    outside = (np.abs(_smooth(curves, window) - smooth) > allowed).mean(axis=1)
    return "diverged" if float(np.median(outside)) > MAX_OUTSIDE else "within_noise"


def _aligned(runs: Sequence[ArmRun], baseline: Sequence[ArmRun]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the losses at batches that all runs recorded, each of shape (runs, losses)."""
    both = [run for run in (*runs, *baseline) if run.losses]
    if not both:
        return np.empty((0, 0)), np.empty((0, 0))
    every = math.lcm(*(run.loss_every for run in both))
    n = min(len(run.losses[:: every // run.loss_every]) for run in both)

    def stacked(group: Sequence[ArmRun]) -> NDArray[np.float64]:
        rows = [run.losses[:: every // run.loss_every][:n] for run in group if run.losses]
        return np.array(rows, dtype=np.float64).reshape(len(rows), n)

    return stacked(runs), stacked(baseline)


def _smooth(curves: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the means of successive whole windows, shape (…, windows)."""
    n = curves.shape[-1] // window
    windows = curves[..., : n * window].reshape(*curves.shape[:-1], n, window)
    return np.asarray(windows.mean(axis=-1), dtype=np.float64)


def _batch_spread(curves: NDArray[np.float64]) -> float:
    """Return the standard deviation of losses about their trend, from differences of neighbors."""
    return float(np.diff(curves, axis=-1).std()) / math.sqrt(2)
