"""Rows of layers' results that nothing reads: a layer computes all positions where the loss needs a few."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lightning_perf.probes.plain import storage_address

LAYERS = {"aten::mm": 0, "aten::addmm": 1}
"""Products of a layer → the argument whose rows give the rows of the result."""

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
STACK = "aten::stack"
_ZERO_SLOPE = {"Clamp", "ClampMin", "IndexPut", "MaskedFill", "Relu", "Scatter", "Sigmoid", "Softmax", "Where"}
"""Functions, as autograd names them, that pass no gradient on where their result is 0."""
_PASSED_BACK = {
    "Clone", "Div", "Expand", "Mul", "Permute", "Reshape", "ReshapeAlias", "Select", "Slice", "Split", "Squeeze",
    "ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View",
}  # fmt: skip
"""Functions whose zeros are those of their first input, or of a mask, which has no gradient."""
_INDEX, _GATHER, _PRODUCT = "aten::index", "aten::gather", "aten::mul"

_weak_reference: Any = StorageWeakRef  # torch's own class has no types


@dataclass(slots=True)
class _Reads:
    """What is read of a call's results: the largest part of one of them, the calls that read all of it row by row.

    ``is_needed`` says that all of a result may be read.
    """

    part: float = 0.0
    readers: set[int] = field(default_factory=set)
    is_needed: bool = False


class _Rows:
    """One result of the log's call ``index``; ``views`` are the parts of it that were read, with their elements."""

    def __init__(self, index: int, out: torch.Tensor) -> None:
        self.index, self.width, self.n_elements = index, out.shape[-1], out.numel()
        self.storage = _weak_reference(out.untyped_storage())
        self.views: dict[Any, int] = {}

    def are_rows(self, value: torch.Tensor) -> bool:
        """Return whether the rows of a view are rows of the result."""
        return value.dim() > 1 and value.shape[-1] == self.width and value.stride(-1) == 1


class RowReads:
    """Follows results of layers, and of operators that compute row by row; keeps no tensor alive."""

    def __init__(self) -> None:
        self._rows: dict[int, _Rows] = {}  # by address; freed ones until another result has the address
        self._reads: defaultdict[int, _Reads] = defaultdict(_Reads)  # by the call's index
        self._saved: _Rows | None = None  # the last result, if autograd is about to save it
        self._n = 0

    def add(
        self, index: int, name: str, args: Sequence[Any], inputs: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> None:
        """Note what the log's call of this index reads, and follow its result."""
        self._saved = None
        self._n += 1
        out = outs[0] if outs else None
        for value in inputs:
            found = self._found(value)
            if found is not None:
                self._read(found, index, name, args, value, out)
        address = storage_address(out) if out is not None else 0
        if out is None or not address or out.dim() < 2 or not out.numel() or not out.is_contiguous():
            return
        is_by_row = name in _BY_ROW and sum(value.numel() == out.numel() for value in inputs) == 1
        if name in LAYERS or is_by_row or (name == STACK and _keeps_rows(args, out)):
            self._fold(self._rows.get(address))
            rows = self._rows[address] = _Rows(index, out)
            self._saved = rows if name in _SAVED else None

    def see(self, tensors: Sequence[Any]) -> None:
        """Note results that other code than operators of the forward pass may read."""
        for value in tensors:
            found = self._found(value)
            if found is not None and found is not self._saved:
                self._reads[found.index].is_needed = True
        self._saved = None

    def parts_needed(self) -> dict[int, float]:
        """Return the part of the rows that is needed, by the index of the call; of all equal calls, the largest one."""
        for rows in self._rows.values():
            self._fold(rows)
        parts: dict[int, float] = {}
        for index in sorted(self._reads, reverse=True):  # readers are later
            reads = self._reads[index]
            part = max(reads.part, *(parts.get(reader, 1.0) for reader in reads.readers), 0.0)
            parts[index] = 1.0 if reads.is_needed else min(1.0, part)
        return parts

    def _read(
        self, rows: _Rows, index: int, name: str, args: Sequence[Any], value: torch.Tensor, out: torch.Tensor | None
    ) -> None:
        reads = self._reads[rows.index]
        if not rows.are_rows(value) or out is None:
            reads.is_needed = True
        elif name == _INDEX:
            selects_rows = args[0] is value and _n_indexed(args[1]) < value.dim() and out.shape[-1:] == value.shape[-1:]
            reads.is_needed |= not selects_rows
            rows.views[self._n] = out.numel()
        elif name == _GATHER and _gathers_rows(args, out):
            rows.views[self._n] = out.numel()
        elif name == STACK and _keeps_rows(args, out):
            reads.readers.add(index)
        elif name == _PRODUCT and (n_kept := _n_kept(value, args, out)) is not None:
            rows.views[self._n] = n_kept * rows.width
        elif name in LAYERS and args[LAYERS[name]] is not value:
            reads.is_needed = True  # each row of the other argument is needed for all rows of the result
        elif value.numel() < rows.n_elements:
            rows.views[value.storage_offset(), value.shape, value.stride()] = value.numel()
        elif name in LAYERS or (name in _BY_ROW and out.shape == value.shape):
            reads.readers.add(index)
        else:
            reads.is_needed = True

    def _found(self, value: Any) -> _Rows | None:
        found = self._rows.get(storage_address(value)) if self._rows and isinstance(value, torch.Tensor) else None
        return found if found is not None and not found.storage.expired() else None

    def _fold(self, rows: _Rows | None) -> None:
        """Add what was read of a result to that of its call; one that exists may still be read."""
        if rows is not None:
            reads = self._reads[rows.index]
            reads.part = max(reads.part, sum(rows.views.values()) / rows.n_elements)
            reads.is_needed |= not rows.storage.expired()


def _gathers_rows(args: Sequence[Any], out: torch.Tensor) -> bool:
    """Return whether ``gather`` takes whole rows: with the same index for all elements of one."""
    of, dim, index = args[:3]
    is_last = dim % of.dim() == of.dim() - 1
    return not is_last and out.shape[-1] == of.shape[-1] and index.stride(-1) == 0


def _keeps_rows(args: Sequence[Any], out: torch.Tensor) -> bool:
    """Return whether ``stack`` leaves the rows of its tensors as they are."""
    dim: int = args[1] if len(args) > 1 else 0
    return dim % out.dim() < out.dim() - 1


def _n_kept(value: torch.Tensor, args: Sequence[Any], out: torch.Tensor) -> int | None:
    """Return how many rows of one factor of a product the other one, a number for each row, does not make zero.

    None if it is no such product, or if a number that is 0 may need the gradient that the row gives it.
    """
    other = args[1] if args[0] is value else args[0]
    if not isinstance(other, torch.Tensor) or out.shape != value.shape or other.device.type != "cpu":
        return None
    if other.shape != (*out.shape[:-1], 1) or (other.requires_grad and not _is_cut(other.grad_fn)):
        return None
    return int(torch.count_nonzero(other.detach()))


def _is_cut(node: Any) -> bool:
    """Return whether no gradient flows back through the zeros that this autograd node computed.

    It does to a parameter that is 0, and in a straight-through estimator, which adds a term for it.
    """
    name = ""
    while node is not None and name not in _ZERO_SLOPE:
        name = node.name().partition("Backward")[0]
        inputs = [one for one, _ in node.next_functions if one is not None]
        is_passed = name in _PASSED_BACK and (len(inputs) == 1 or (name == "Div" and node.next_functions[0][0]))
        node = inputs[0] if is_passed else None
    return name in _ZERO_SLOPE


def _n_indexed(indices: Sequence[Any]) -> int:
    """Return how many dimensions are indexed, counted up to the last one; a mask indexes as many as it has."""
    return sum(one.dim() if isinstance(one, torch.Tensor) and one.dtype is torch.bool else 1 for one in indices)
