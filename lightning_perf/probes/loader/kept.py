"""Time items that are kept in memory, as the treatment ``dataset-cache`` keeps them."""

import time
from collections import deque
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from lightning_perf.cached_dataset import SAMPLED_ITEMS, CachedDataset, require_same, size_of_all

from .pipeline import Pipeline

_LEAST_ITEMS = 4
_ENOUGH_HITS = 256
_SLOW_QUANTILE = 0.9
"""Of the times from memory. A few dozen items stay in the CPU's caches, in which all items of a dataset do not fit."""


class Kept(NamedTuple):
    """Seconds to get one item from memory, bytes of all items, and number of items that were loaded twice."""

    item_s: float
    n_bytes: float
    n_compared: int


def time_kept(pipeline: Pipeline, load_s: float, limit_s: float) -> Kept:
    """Load a few items twice, compare them, and time getting them from memory.

    Args:
        pipeline: The loader's parts.
        load_s: Seconds to load one item: a sample, or a batch if the dataset makes whole batches.
        limit_s: Seconds that this may take.

    Raises:
        TreatmentError: They must not be kept, for the reasons of ``dataset-cache``.
        TimeoutError: To find out takes too long.
    """
    if 2 * _LEAST_ITEMS * load_s > limit_s:
        raise TimeoutError(f"loading {_LEAST_ITEMS} items twice takes longer than {limit_s:.2g} s")
    cached, end_s = CachedDataset(pipeline, is_strict=True), time.perf_counter() + limit_s
    indices: list[Any] = []
    for index in pipeline.units if pipeline.makes_batches else chain.from_iterable(pipeline.units):
        cached[index]
        require_same(cached, index)
        indices.append(index)
        is_late = time.perf_counter() > end_s - limit_s / 4
        if len(indices) >= SAMPLED_ITEMS or (is_late and len(indices) >= _LEAST_ITEMS):
            break
    n_bytes = size_of_all(cached)
    hits_s: list[float] = []
    held: deque[Any] = deque(maxlen=len(indices))  # as the items of a batch are held: each copy needs new memory
    while len(hits_s) < _ENOUGH_HITS and (not hits_s or time.perf_counter() < end_s):
        for index in indices:
            begin_s = time.perf_counter()
            held.append(cached[index])
            hits_s.append(time.perf_counter() - begin_s)
    return Kept(float(np.quantile(hits_s, _SLOW_QUANTILE)), n_bytes, len(set(indices)))
