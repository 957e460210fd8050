"""Products of three matrices that cost less in the other order, and products of which only a part is read."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from .calls import MATRIX_PRODUCTS, MAX_CALLS, Call, CallLog, TensorSpec
from .functions import Bound, Cheaper, Work, map_specs, readers_of, work_for
from .read_rows import LAYERS, STACK

_MAX_PART = 0.5
"""Part of the multiplications that the other order needs at most: a smaller gain is lost in a product's overhead."""

_MAX_ROWS = 0.5
"""Part of the rows; where more are read, a selection saves little."""

_BIASED = "aten::addmm"

_READS_DIAGONAL = ("aten::diagonal_copy", "aten::trace")

_Pair = tuple[TensorSpec, TensorSpec]


def in_other_order(log: CallLog) -> list[Cheaper]:
    """Find ``(a @ b) @ c`` where ``a @ (b @ c)`` needs at most half of the multiplications, and the reverse.

    Each product is part of at most one of them: the one that saves the most.
    """
    kept: list[Cheaper] = []
    for found in sorted(_candidates(log), key=lambda one: one.work.n * (one.better - one.size)):
        taken = {call.index for other in kept for call in other.work.calls}
        if taken.isdisjoint(call.index for call in found.work.calls):
            kept.append(found)
    return kept


def _candidates(log: CallLog) -> Iterator[Cheaper]:
    """Yield products of three matrices, with the number of multiplications as they are and in the other order."""
    products, readers = _products(log), readers_of(log)
    biased = [call for call in log.calls if call.name == _BIASED and len(call.specs) == 3 and not call.kwargs]
    for outer in (*products.values(), *(biased if products else ())):
        for place, spec in enumerate(_pair(outer)):
            inner = products.get(spec.source)
            if inner is None or inner.n != outer.n or _pair(outer)[1 - place].source == inner.index:
                continue
            if readers[inner.index] != [outer] or inner.index in {bias.source for bias in outer.specs[:-2]}:
                continue
            pairs = _other_order(inner, outer, place)
            if pairs is None:
                continue
            as_is = _pair(inner), _pair(outer)
            before, after = (sum(map(_multiplications, each)) for each in (as_is, pairs))
            if after <= _MAX_PART * before:
                old, new = ((_product(first), _product(last, outer)) for first, last in (as_is, pairs))
                work = Work((inner, outer), old, new)
                yield Cheaper("order", work, outer.site, inner.out_shape, before, after)


def read_along_diagonal(log: CallLog) -> Iterator[Cheaper]:
    """Find products read along the diagonal alone, which is the sum of each row times a column."""
    readers = readers_of(log)
    for call in _products(log).values():
        if readers[call.index] and all(_reads_diagonal(each, call) for each in readers[call.index]):
            work = Work((call,), (_product(_pair(call)),), ((_diagonal, _pair(call), {}),))
            yield Cheaper("diagonal", work, call.site, call.out_shape, call.out_shape[-1])


def _products(log: CallLog) -> dict[int, Call]:
    """Return the products of two matrices by index, without those that code other than operators may read."""
    if len(log.calls) >= MAX_CALLS:
        return {}  # later operators are not known
    return {
        call.index: call
        for call in log.calls
        if call.name in MATRIX_PRODUCTS and len(call.specs) == 2 and not log.product_reads.is_read(call.index)
    }


def _reads_diagonal(reader: Call, call: Call) -> bool:
    shape, stride = call.out_shape, call.out_stride
    if shape[-1] != shape[-2] or reader.func._schema.is_mutable:
        return False  # what is written into it is read later
    of_call = [spec for spec in reader.specs if spec.source == call.index]
    if reader.name in _READS_DIAGONAL:
        return not reader.named.get("offset") and all(spec.shape[-2:] == shape[-2:] for spec in of_call)
    diagonal = (*shape[:-1],), (*stride[:-2], stride[-1] + stride[-2])
    return bool(of_call) and all((spec.shape, spec.stride) == diagonal for spec in of_call)


def _other_order(inner: Call, outer: Call, place: int) -> tuple[_Pair, _Pair] | None:
    """Return the pairs of matrices that are multiplied in the other order; None if the outer product reads a part."""
    first, second = _pair(inner)
    seen, other = _pair(outer)[place], _pair(outer)[1 - place]
    shape, stride = inner.out_shape, inner.out_stride
    if (seen.shape, seen.stride) != (shape, stride):
        if (seen.shape, seen.stride) != (_swapped(shape), _swapped(stride)):
            return None
        first, second = transposed(second), transposed(first)
    earlier, kept = ((second, other), first) if place == 0 else ((other, first), second)
    between = other.dense((*other.shape[:-2], earlier[0].shape[-2], earlier[1].shape[-1]))
    between = between._replace(needs_grad=any(spec.needs_grad for spec in earlier))
    return earlier, (kept, between) if place == 0 else (between, kept)


def _pair(call: Call) -> _Pair:
    *_, one, other = call.specs  # without the bias
    return one, other


def _swapped(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return *sizes[:-2], sizes[-1], sizes[-2]


def transposed(spec: TensorSpec) -> TensorSpec:
    """Return a tensor with its last two dimensions exchanged."""
    return spec._replace(shape=_swapped(spec.shape), stride=_swapped(spec.stride))


def _multiplications(pair: _Pair) -> int:
    return math.prod(pair[0].shape) * pair[1].shape[-1]


def _product(pair: _Pair, outer: Call | None = None) -> Bound:
    """Return the product of a pair, with the bias of ``outer`` if that has one."""
    if outer is None or outer.name != _BIASED:
        return torch.matmul, pair, {}
    return torch.addmm, (outer.specs[0], *pair), {}


def _diagonal(rows: torch.Tensor, columns: torch.Tensor) -> Any:
    return (rows * columns.mT).sum(-1)


def with_fewer_rows(log: CallLog) -> Iterator[Cheaper]:
    """Find layers of whose results at most half of the rows are read, and the row by row operators next to them.

    Only layers with a backward pass count. Nothing is found if no layer is among them.
    """
    found = []
    for index, part in log.row_reads.parts_needed().items():
        call = log.calls[index]
        if 0 < part <= _MAX_ROWS and call.has_backward and call.name != STACK:
            n_rows = call.n_out // call.out_shape[-1]
            n_needed = max(1, round(part * n_rows))
            for work in work_for(call, partial(_reduced, call, part)):
                found.append(Cheaper("rows", work, call.site, call.out_shape, n_rows, n_needed))
    if any(one.work.calls[0].name in LAYERS for one in found):
        yield from found


def _reduced(call: Call, part: float, bound: Any) -> Any:
    """Return the function with a part of the rows, along the dimension whose part is nearest to a whole number."""
    fewer = {dim: max(1, round(part * size)) for dim, size in enumerate(call.out_shape[:-1])}
    dim = min(fewer, key=lambda dim: abs(fewer[dim] - part * call.out_shape[dim]))

    def reduce(spec: TensorSpec) -> TensorSpec:
        if spec.shape[:-1] != call.out_shape[:-1]:
            return spec
        return spec.dense((*spec.shape[:dim], fewer[dim], *spec.shape[dim + 1 :]))

    if call.name not in LAYERS:
        return map_specs(reduce, bound)
    function, (*bias, given, weight), kwargs = bound
    return function, (*bias, reduce(given), weight), kwargs
