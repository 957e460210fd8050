"""Rows of layers' results that nothing reads: a layer computes all positions where the loss needs a few."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lightning_perf.probes.plain import storage_address

LAYERS = ("aten::mm", "aten::addmm")
_BY_ROW = {
    f"aten::{name}"
    for name in (
        "relu", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "native_dropout", "_to_copy", "clone", "add",
        "mul", "div",
    )
}  # fmt: skip
"""Operators that compute each row from the same row alone, if one of their tensors is as large as the result."""
_SAVED = {f"aten::{name}" for name in ("relu", "tanh", "sigmoid", "elu")}
"""Operators whose result autograd saves for backward, detached, as soon as it is computed."""
_INDEX = "aten::index"

_weak_reference: Any = StorageWeakRef  # torch's own class has no types


class _Rows:
    """The result of one call: ``views`` are the parts of it that were read, with their elements; ``readers`` read all.

    ``is_needed`` says that all of it may be read.
    """

    def __init__(self, index: int, out: torch.Tensor) -> None:
        self.index, self.width, self.n_elements = index, out.shape[-1], out.numel()
        self.storage = _weak_reference(out.untyped_storage())
        self.views: dict[Any, int] = {}
        self.readers: set[int] = set()
        self.is_needed = False


class RowReads:
    """Follows results of layers, and of operators that compute row by row; keeps no tensor alive."""

    def __init__(self) -> None:
        self._rows: dict[int, _Rows] = {}
        self._all: list[_Rows] = []
        self._saved: _Rows | None = None  # the last result, if autograd is about to save it

    def add(self, index: int, name: str, inputs: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> None:
        """Note what the log's call of this index reads, and follow its result."""
        self._saved = None
        for value in inputs:
            found = self._found(value)
            if found is None:
                continue
            part = outs[0] if name == _INDEX and outs else value
            if part.numel() >= found.n_elements:
                found.readers.add(index)
            elif part.dim() and part.shape[-1] == found.width and part.stride(-1) == 1:
                key = (index,) if part is not value else (value.storage_offset(), value.shape, value.stride())
                found.views[key] = part.numel()
            else:
                found.is_needed = True
        if not outs or outs[0].dim() < 2 or not outs[0].is_contiguous():
            return
        out = outs[0]
        if name in LAYERS or (name in _BY_ROW and sum(value.numel() == out.numel() for value in inputs) == 1):
            rows = _Rows(index, out)
            self._rows[storage_address(out)] = rows
            self._all.append(rows)
            self._saved = rows if name in _SAVED else None

    def see(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note results that are detached, to be read by other code than operators."""
        for value in tensors:
            found = self._found(value)
            if found is not None and found is not self._saved:
                found.is_needed = True
        self._saved = None

    def _found(self, value: Any) -> _Rows | None:
        found = self._rows.get(storage_address(value)) if self._rows and isinstance(value, torch.Tensor) else None
        return found if found is not None and not found.storage.expired() else None

    def parts_needed(self) -> dict[int, float]:
        """Return the part of the rows that is needed, by the index of the call; of all equal calls, the largest one."""
        parts: dict[int, float] = {}
        for rows in reversed(self._all):  # readers are later
            part = 1.0
            if not rows.is_needed and rows.storage.expired() and (rows.views or rows.readers):
                of_readers = [parts.get(reader, 1.0) for reader in rows.readers]
                part = max(sum(rows.views.values()) / rows.n_elements, *of_readers, 0.0)
            parts[rows.index] = max(parts.get(rows.index, 0.0), min(1.0, part))
        return parts
