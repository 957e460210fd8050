"""Products of three matrices that cost less in the other order, and products of which only the diagonal is read."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from .calls import MATRIX_PRODUCTS, Call, CallLog, TensorSpec
from .functions import Bound, Work

_MAX_PART = 0.5
"""Part of the multiplications that the other order needs at most: a smaller gain is lost in what products cost else."""

_READS_DIAGONAL = ("aten::diagonal_copy", "aten::trace")

_Pair = tuple[TensorSpec, TensorSpec]


def in_other_order(log: CallLog) -> Iterator[tuple[Work, int, int]]:
    """Find ``(a @ b) @ c`` where ``a @ (b @ c)`` needs at most half of the multiplications, and the reverse.

    Yield both products as they are and in the other order, with the multiplications of each.
    """
    for outer in _products(log):
        for place, spec in enumerate(outer.specs):
            inner = log.calls[spec.source] if spec.source >= 0 else None
            if inner is None or inner.name not in MATRIX_PRODUCTS or inner.n != outer.n:
                continue
            pairs = _other_order(inner, outer, place)
            if _readers(log, inner) != [outer] or pairs is None:
                continue
            as_is = _pair(inner), _pair(outer)
            before, after = (sum(map(_multiplications, each)) for each in (as_is, pairs))
            if after <= _MAX_PART * before:
                work = Work((inner, outer), tuple(map(_product, as_is)), tuple(map(_product, pairs)))
                yield work, before, after


def read_along_diagonal(log: CallLog) -> Iterator[Work]:
    """Find products read along the diagonal alone, which is the sum of each row times a column."""
    for call in _products(log):
        readers = _readers(log, call)
        if readers and all(_reads_diagonal(each, call) for each in readers):
            rows, columns = _pair(call)
            yield Work((call,), (_product((rows, columns)),), ((_diagonal, (rows, columns), {}),))


def _products(log: CallLog) -> Iterator[Call]:
    for call in log.calls:
        if call.name in MATRIX_PRODUCTS and len(call.specs) == 2:
            yield call


def _readers(log: CallLog, call: Call) -> list[Call]:
    return [each for each in log.calls if call.index in each.writers]


def _reads_diagonal(reader: Call, call: Call) -> bool:
    shape, stride = call.out_shape, call.out_stride
    if shape[-1] != shape[-2]:
        return False
    of_call = [spec for spec in reader.specs if spec.source == call.index]
    if reader.name in _READS_DIAGONAL:
        return not reader.named.get("offset") and all(spec.shape[-2:] == shape[-2:] for spec in of_call)
    step = stride[-1] + stride[-2]
    return bool(of_call) and all(spec.shape[-1:] == shape[-1:] and spec.stride[-1] == step for spec in of_call)


def _other_order(inner: Call, outer: Call, place: int) -> tuple[_Pair, _Pair] | None:
    """Return the pairs of matrices that are multiplied in the other order; None if the outer product reads a part."""
    first, second = _pair(inner)
    seen, other = outer.specs[place], outer.specs[1 - place]
    shape, stride = inner.out_shape, inner.out_stride
    if (seen.shape, seen.stride) != (shape, stride):
        if (seen.shape, seen.stride) != (_swapped(shape), _swapped(stride)):
            return None
        first, second = _transposed(second), _transposed(first)
    earlier, kept = ((second, other), first) if place == 0 else ((other, first), second)
    between = other.dense((*other.shape[:-2], earlier[0].shape[-2], earlier[1].shape[-1]))
    between = between._replace(needs_grad=any(spec.needs_grad for spec in earlier))
    return earlier, (kept, between) if place == 0 else (between, kept)


def _pair(call: Call) -> _Pair:
    one, other = call.specs
    return one, other


def _swapped(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return *sizes[:-2], sizes[-1], sizes[-2]


def _transposed(spec: TensorSpec) -> TensorSpec:
    return spec._replace(shape=_swapped(spec.shape), stride=_swapped(spec.stride))


def _multiplications(pair: _Pair) -> int:
    return math.prod(pair[0].shape) * pair[1].shape[-1]


def _product(pair: _Pair) -> Bound:
    return torch.matmul, pair, {}


def _diagonal(rows: torch.Tensor, columns: torch.Tensor) -> Any:
    return (rows * columns.mT).sum(-1)
