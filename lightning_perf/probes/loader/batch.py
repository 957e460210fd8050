"""What is in a batch: bytes, tensors, objects; what could be narrower; whether samples are rows of held tensors."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

_MAX_DEPTH = 6
_MAX_ITEMS = 10_000  # of one batch: more are counted as if they were like these
_MAX_VALUES = 1_000_000  # of one field looked at for narrowness; evenly spread where it has more


class BatchContents:
    """Describes batches, one after another.

    Attributes:
        n_bytes: Bytes of the tensors and arrays of the last batch.
        n_tensors: Tensors and arrays in it.
        n_objects: Other objects in it.
        by_dtype: Bytes by dtype.
        tensor_bytes: Bytes of each tensor.
    """

    def __init__(self) -> None:
        self.n_bytes = self.n_tensors = self.n_objects = 0
        self.by_dtype: Counter[str] = Counter()
        self.tensor_bytes: list[int] = []
        self._float_fields: dict[tuple[Any, ...], tuple[int, bool]] = {}

    def add(self, batch: Any) -> None:
        """Looks at one batch; only narrowness is remembered from those before."""
        self.n_bytes = self.n_tensors = self.n_objects = 0
        self.by_dtype.clear()
        self.tensor_bytes.clear()
        for place, value in _leaves(batch):
            array = _as_array(value)
            if array is None:
                self.n_objects += 1
                continue
            name, n_bytes = _dtype_and_bytes(value)
            self.n_tensors += 1
            self.n_bytes += n_bytes
            self.by_dtype[name] += n_bytes
            self.tensor_bytes.append(n_bytes)
            if name.startswith(("float", "bfloat")):
                was_narrow = self._float_fields.get(place, (0, True))[1]
                self._float_fields[place] = (n_bytes, was_narrow and _fits_bytes(array))

    @property
    def narrow_bytes(self) -> int:
        """Bytes a batch of float fields whose every value seen was made from a byte, as far as values can tell."""
        return sum(n_bytes for n_bytes, is_narrow in self._float_fields.values() if is_narrow)


def indexes_tensors(dataset: Any, sample: Any) -> bool:
    """Whether a sample is made of rows of tensors or arrays that the dataset holds.

    Every tensor or array of it must lie in the memory of one that is an attribute of the dataset, or of a dataset that
    it wraps. No property of the user's is run.
    """
    owned = [span for value in _held(dataset) if (span := _memory(value)) is not None]
    parts = [span for _, value in _leaves(sample) if (span := _memory(value)) is not None]
    return bool(owned and parts) and all(any(begin <= at < end for begin, end in owned) for at, _ in parts)


def _leaves(value: Any, place: tuple[Any, ...] = (), depth: int = _MAX_DEPTH) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What a batch is made of, with where it stands; containers are given too, before what is in them."""
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
    """Values of a tensor or array as numpy sees them; an empty array where it cannot; None for other objects."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, torch.Tensor):
        return None
    try:
        plain = value.detach()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    except (TypeError, RuntimeError):  # sparse, nested, quantized
        return np.empty(0)


def _dtype_and_bytes(value: Any) -> tuple[str, int]:
    if isinstance(value, np.ndarray):
        return str(value.dtype), int(value.nbytes)
    return str(value.dtype).removeprefix("torch."), int(value.numel() * value.element_size())


def _fits_bytes(array: np.ndarray[Any, Any]) -> bool:
    """Whether every value is a whole number in 0…255, or one of k/255."""
    if array.size == 0:
        return False
    flat = array.reshape(-1)
    values = flat[:: max(1, flat.size // _MAX_VALUES)].astype(np.float64)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 255):  # also where there is a NaN
        return False
    if high <= 1.0:
        # float16 keeps k/255 to about 5e-4 of it; times 255 that is 0.13.
        values = values * 255
        return bool(np.abs(values - np.rint(values)).max() <= (0.15 if array.dtype == np.float16 else 1e-3))
    return bool((values == np.rint(values)).all())


def _held(dataset: Any, depth: int = 4) -> Iterator[Any]:
    for value in (getattr(dataset, "__dict__", None) or {}).values():
        if isinstance(value, (torch.Tensor, np.ndarray)):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (each for each in value[:64] if isinstance(each, (torch.Tensor, np.ndarray)))
        elif isinstance(value, dict):
            yield from (each for each in list(value.values())[:64] if isinstance(each, (torch.Tensor, np.ndarray)))
        elif depth and hasattr(type(value), "__getitem__") and hasattr(value, "__dict__"):
            yield from _held(value, depth - 1)


def _memory(value: Any) -> tuple[int, int] | None:
    """First and past-the-last address of what a tensor or array keeps alive; None for others."""
    if isinstance(value, torch.Tensor):
        try:
            storage = value.untyped_storage()
            return value.data_ptr(), storage.data_ptr() + storage.nbytes()
        except RuntimeError:
            return None
    if isinstance(value, np.ndarray) and value.size:
        begin = int(value.__array_interface__["data"][0])
        return begin, begin + value.nbytes
    return None
