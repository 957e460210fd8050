"""Memory as a fixed part plus a part per sample, and the largest batch that fits."""

import math
from collections.abc import Sequence

import numpy as np

MIN_SIZES = 2
"""Batch sizes that a line needs."""


def fit_samples(observed: Sequence[tuple[int, int]]) -> tuple[float, float] | None:
    """Fit fixed bytes and bytes per sample to the medians by batch size of ``(samples, bytes)``, by least squares.

    None with one size only, or if larger batches did not take more.
    """
    by_size: dict[int, list[int]] = {}
    for samples, n_bytes in observed:
        by_size.setdefault(samples, []).append(n_bytes)
    if len(by_size) < MIN_SIZES:
        return None
    sizes = np.array(sorted(by_size), dtype=np.float64)
    medians = np.array([np.median(by_size[int(size)]) for size in sizes])
    per_sample, fixed = np.polyfit(sizes, medians, 1)
    return (max(0.0, float(fixed)), float(per_sample)) if per_sample > 0 else None


def largest_batch(capacity_bytes: float, margin_fraction: float, fixed_bytes: float, per_sample_bytes: float) -> int:
    """Return the most samples with ``fixed + samples · per_sample ≤ capacity · (1 - margin)``; 0 if none fits."""
    if per_sample_bytes <= 0:
        raise ValueError(f"per_sample_bytes={per_sample_bytes!r}: expected more than 0, as fit_samples gives")
    left = capacity_bytes * (1 - margin_fraction) - fixed_bytes
    return max(0, math.floor(left / per_sample_bytes))
