"""How much of the results of a step's sorts is read, and whether other code than operators reads its products."""

import math
import sys
import weakref
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lightning_perf.probes.plain import storage_address

SORT = "aten::sort"

_weak_reference: Any = StorageWeakRef  # torch's own class has no types


class _Result(NamedTuple):
    """Results of the log's call ``call_index``; ``step`` is the stride of the sorted dimension, of size ``n``."""

    call_index: int
    n: int
    step: int
    n_elements: int
    storage: Any
    tensor: weakref.ref[torch.Tensor]

    @property
    def is_held(self) -> bool:
        """Whether more than views of it refer to the result: code that is no operator, as ``tolist``, may read it."""
        n = _n_references(self.tensor)
        return n is not None and n > _n_without_variable()


def _n_references(reference: weakref.ref[torch.Tensor]) -> int | None:
    tensor = reference()
    return None if tensor is None else sys.getrefcount(tensor)


@cache
def _n_without_variable() -> int:
    """Return the number of references to a tensor that only a view of it keeps alive.

    It depends on the versions of Python and torch. 0 if it is the same with a variable that holds the tensor, as before
    torch 2.10 (https://github.com/pytorch/pytorch/pull/167564): then one may always hold it.
    """
    with torch.inference_mode(False):
        tensor = torch.empty(2, device="cpu")
        reference, view = weakref.ref(tensor), tensor[:1]
        n_with = _n_references(reference)
        del tensor
        n = _n_references(reference)
    del view
    return n if n is not None and n != n_with else 0


class ProductReads:
    """Follows the products of matrices that other code than an operator of the forward pass may read."""

    def __init__(self) -> None:
        self._storages: dict[int, list[Any]] = {}
        self._read: set[int] = set()

    def add(self, index: int, outs: Iterable[torch.Tensor]) -> None:
        """Follow the results of the log's call of this index."""
        self._storages.setdefault(index, []).extend(_weak_reference(out.untyped_storage()) for out in outs)

    def see(self, indices: Iterable[int]) -> None:
        """Note that results are read, or detached to be read; those that are freed had the same address before."""
        self._read.update(index for index in indices if self._exists(index))

    def is_read(self, index: int) -> bool:
        """Return whether something else may have read a result, or has it after the step."""
        return index in self._read or self._exists(index)

    def _exists(self, index: int) -> bool:
        return any(not storage.expired() for storage in self._storages.get(index, ()))


class BatchReads:
    """Reads of the batch's tensors by operators.

    Attributes:
        addresses: Of their storages; empty if there are none.
        is_complete: Whether the batch holds no other objects, which may hold data as well.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.addresses = {storage_address(value) for value in tensors} - {0}
        self.is_complete = True
        self._is_read = False

    def see(self, inputs: Iterable[torch.Tensor]) -> None:
        """Note what an operator reads."""
        if not self._is_read and self.addresses:
            self._is_read = any(storage_address(value) in self.addresses for value in inputs)

    def is_read(self) -> bool | None:
        """Return whether an operator has read one; None if none has and the batch may hold other data."""
        return self._is_read or (False if self.addresses and self.is_complete else None)


class SortReads:
    """Follows the results of sorts by their storages; keeps no tensor alive."""

    def __init__(self) -> None:
        _n_without_variable()  # before a dispatch mode is in place, in which views keep nothing alive
        self._results: dict[int, _Result] = {}
        self._all: list[_Result] = []
        self._read: dict[int, tuple[int, int]] = {}  # elements up to the last read, and from the first on

    def add(self, index: int, outs: Sequence[torch.Tensor], dim: int) -> None:
        """Follow the results of the log's call of this index, sorted along ``dim``."""
        for out in outs:
            if out.numel() and out.dim():
                storage = _weak_reference(out.untyped_storage())
                step = max(1, out.stride(dim))
                result = _Result(index, out.shape[dim], step, out.numel(), storage, weakref.ref(out))
                self._results[storage_address(out)] = result
                self._all.append(result)

    def see(self, inputs: Iterable[torch.Tensor]) -> None:
        """Note what an operator reads."""
        for value in inputs:
            found = self._results.get(storage_address(value)) if self._results else None
            if found is not None and not found.storage.expired():
                self._note(found, *((found.n, found.n) if found.is_held else _span(found, value)))

    def needed(self, index: int) -> int:
        """Return how many elements at one end of each sorted row are read at most; 0 if none is known to be read."""
        for result in self._all:
            if not result.storage.expired():  # still held after the step
                self._note(result, result.n, result.n)
        return min(self._read.get(index, (0,)))

    def _note(self, result: _Result, up_to: int, from_first: int) -> None:
        before = self._read.get(result.call_index, (0, 0))
        self._read[result.call_index] = max(before[0], up_to), max(before[1], from_first)


def _span(result: _Result, value: torch.Tensor) -> tuple[int, int]:
    """Return how many elements of each row reach up to the last one of a view, and from its first one on.

    A view counts as the whole result if it is not the same part of all rows.
    """
    whole = result.n, result.n
    sizes = [(size, step) for size, step in zip(value.shape, value.stride(), strict=True) if step and size != 1]
    of_rows = [(size, step) for size, step in sizes if result.step <= step < result.step * result.n]
    n_rows = math.prod(size for size, step in sizes if (size, step) not in of_rows)
    if len(of_rows) > 1 or n_rows * result.n != result.n_elements:
        return whole
    size, step = of_rows[0] if of_rows else (1, result.step)
    first = value.storage_offset() // result.step % result.n
    last = first + (size - 1) * step // result.step + 1
    return (last, result.n - first) if last <= result.n else whole
