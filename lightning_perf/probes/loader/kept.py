"""Time items that are kept in memory, as the treatment ``dataset-cache`` keeps them."""

import statistics
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from lightning_perf.cached_dataset import SAMPLED_ITEMS, CachedDataset, size_of_all
from lightning_perf.errors import TreatmentError

from .pipeline import Pipeline

_LEAST_ITEMS = 4
"""Items that are loaded at least; three or more of them are loaded again, to be compared."""
_ENOUGH_HITS = 256


class Kept(NamedTuple):
    """Seconds to get one item from memory, and the bytes of all items."""

    item_s: float
    n_bytes: float


def time_kept(pipeline: Pipeline, load_s: float, limit_s: float) -> Kept:
    """Load a few items, compare some of them with what a second load gives, and time getting them from memory.

    Args:
        pipeline: The loader's parts.
        load_s: Seconds to load one item: a sample, or a batch if the dataset makes whole batches.
        limit_s: Seconds that this may take.

    Raises:
        TreatmentError: They cannot be kept, for the reasons of ``dataset-cache``, or to find out takes too long.
    """
    if 2 * _LEAST_ITEMS * load_s > limit_s:
        raise TreatmentError(f"loading {_LEAST_ITEMS} items twice takes longer than {limit_s:.2g} s")
    cached, end_s = CachedDataset(pipeline, is_strict=True), time.perf_counter() + limit_s
    indices: list[Any] = []
    for index in _indices(pipeline):
        cached[index]
        indices.append(index)
        is_late = time.perf_counter() > end_s - limit_s / 2
        if len(indices) >= SAMPLED_ITEMS or (is_late and len(indices) >= _LEAST_ITEMS):
            break
    n_bytes = size_of_all(cached)
    hits_s: list[float] = []
    while len(hits_s) < _ENOUGH_HITS and (not hits_s or time.perf_counter() < end_s):
        for index in indices:
            begin_s = time.perf_counter()
            cached[index]
            hits_s.append(time.perf_counter() - begin_s)
    return Kept(statistics.median(hits_s), n_bytes)


def _indices(pipeline: Pipeline) -> Iterator[Any]:
    """Yield the indices of items in the loader's order."""
    return pipeline.units if pipeline.makes_batches else chain.from_iterable(pipeline.units)
