"""Describe the contents of batches, and summarize durations, for the record."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from lightning_perf import interrupts
from lightning_perf.probes.memory.storages import n_bytes
from lightning_perf.records.loader_probe import Repeated, WorkerPoint
from lightning_perf.stats import estimates

_MAX_DEPTH = 6
_MAX_ITEMS = 10_000  # of one list; further ones are not counted
_MAX_VALUES = 1_000_000  # of one field checked for uint8, evenly spaced if it has more


class BatchContents:
    """Contents of the largest batch, and the float fields whose values in all batches are representable as uint8."""

    def __init__(self) -> None:
        self._n_tensors = self._n_objects = 0
        self._by_dtype: Counter[str] = Counter()
        self._by_float_field: Counter[tuple[Any, ...]] = Counter()
        self._wide_fields: set[tuple[Any, ...]] = set()

    def add(self, batch: Any) -> None:
        """Describe one batch; of smaller ones, only which float fields do not fit uint8 is kept."""
        n_tensors = n_objects = 0
        by_dtype, by_float_field = Counter[str](), Counter[tuple[Any, ...]]()
        for place, value in _leaves(batch):
            array = _as_array(value)
            if array is None:
                n_objects += 1
                continue
            name = str(value.dtype).removeprefix("torch.")
            size = value.nbytes if isinstance(value, np.ndarray) else n_bytes(value)
            n_tensors += 1
            by_dtype[name] += size
            if name.startswith(("float", "bfloat")):
                by_float_field[place] += size
                if place not in self._wide_fields and not _fits_uint8(array):
                    self._wide_fields.add(place)
        if by_dtype.total() >= self._by_dtype.total():
            self._n_tensors, self._n_objects = n_tensors, n_objects
            self._by_dtype, self._by_float_field = by_dtype, by_float_field

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``LoaderProbe`` that describe a batch."""
        return {
            "batch_bytes": self._by_dtype.total(),
            "n_tensors": self._n_tensors,
            "n_objects": self._n_objects,
            "bytes_by_dtype": dict(self._by_dtype),
            "narrow_bytes": sum(n for place, n in self._by_float_field.items() if place not in self._wide_fields),
        }


def indexes_tensors(dataset: Any, sample: Any) -> bool:
    """Return whether a sample is made of rows of tensors or arrays that the dataset holds.

    Each tensor or array of the sample must be in the memory of one that is an attribute of the dataset, or of a dataset
    that it wraps. No property of the user's classes is computed.
    """
    owned = [span for value in _arrays_held(dataset) if (span := _memory(value)) is not None]
    parts = [span for _, value in _leaves(sample) if (span := _memory(value)) is not None]
    return bool(owned and parts) and all(any(begin <= at < end for begin, end in owned) for at, _ in parts)


def _leaves(value: Any, place: tuple[Any, ...] = (), depth: int = _MAX_DEPTH) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the values of a batch with the keys that lead to them; each container comes before its items."""
    yield place, value
    if depth == 0 or isinstance(value, (str, bytes, torch.Tensor, np.ndarray)):
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        # A long list is one field, however many items it has.
        inner = ((index if len(value) < 100 else "*", each) for index, each in enumerate(value[:_MAX_ITEMS]))
    elif dataclasses.is_dataclass(value) or type(value).__module__.split(".")[0] not in ("builtins", "torch", "numpy"):
        inner = getattr(value, "__dict__", {}).items()
    for key, each in inner:
        yield from _leaves(each, (*place, key), depth - 1)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a tensor or array as a numpy array, empty if it cannot be converted; None for other objects."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, torch.Tensor):
        return None
    with interrupts.suppress(TypeError, RuntimeError):  # sparse, nested, quantized
        plain = value.detach()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return np.empty(0)


def _fits_uint8(array: np.ndarray[Any, Any]) -> bool:
    """Return whether every value is a whole number in 0…255, or one of k/255."""
    if array.size == 0:
        return False
    flat = array.reshape(-1)
    values = flat[:: max(1, flat.size // _MAX_VALUES)].astype(np.float64)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 255):  # also if one is NaN
        return False
    if high <= 1.0:
        # The relative rounding error of float16 is about 5e-4: at most 0.13 of 255.
        values = values * 255
        return bool(np.abs(values - np.rint(values)).max() <= (0.15 if array.dtype == np.float16 else 1e-3))
    return bool((values == np.rint(values)).all())


def _arrays_held(dataset: Any, depth: int = 4) -> Iterator[Any]:
    for value in (getattr(dataset, "__dict__", None) or {}).values():
        several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
        items = (value,) if several is None else islice(several, 64)
        yield from (each for each in items if isinstance(each, (torch.Tensor, np.ndarray)))
        if depth and hasattr(type(value), "__getitem__") and hasattr(value, "__dict__"):
            yield from _arrays_held(value, depth - 1)


def _memory(value: Any) -> tuple[int, int] | None:
    """Return the first and the past-the-last address of a tensor's or array's memory; None for others."""
    if isinstance(value, torch.Tensor):
        with interrupts.suppress(RuntimeError):
            storage = value.untyped_storage()
            return value.data_ptr(), storage.data_ptr() + storage.nbytes()
    if isinstance(value, np.ndarray) and value.size:
        begin = int(value.__array_interface__["data"][0])
        return begin, begin + value.nbytes
    return None


def summarize(durations_s: Sequence[float]) -> Repeated | None:
    """Return a summary of durations; None without any."""
    if not durations_s:
        return None
    values = np.asarray(durations_s, dtype=np.float64)
    p50, p95 = np.quantile(values, (0.5, 0.95))
    return Repeated(
        n=len(values), mean_s=float(values.mean()), p50_s=float(p50), p95_s=float(p95), max_s=float(values.max())
    )


def mean_interval(means: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of independent times; its width is 0 for a single time."""
    found = estimates.mean_interval(means)
    return (max(0.0, found.low), found.high) if found is not None else (means[0], means[0])


def point_of(
    batch_s: Sequence[float], num_workers: int, prefetch_factor: int | None, first_batch_s: float
) -> WorkerPoint:
    """Return the curve's point from the seconds of each batch."""
    low, high = mean_interval(batch_s)
    return WorkerPoint(
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        batch_s=sum(batch_s) / len(batch_s),
        low_s=low,
        high_s=high,
        first_batch_s=first_batch_s,
        n_batches=len(batch_s),
    )
