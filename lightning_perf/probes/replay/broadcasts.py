"""Find products, distances and similarities of all pairs that are computed by broadcasting; replay them without it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from lightning_perf.records import BroadcastSum, PairKind

from .calls import Call, CallLog, TensorSpec
from .functions import Readers, Work, function_of, readers_of

MIN_ELEMENTS = 2**16
"""Smaller tensors stay in a core's own cache."""

_SMALL_PART = 1 / 64
"""Tensors of pairs are made from rows that have at most this fraction of their elements."""

_COMPARISONS = tuple(f"aten::{name}" for name in ("lt", "le", "gt", "ge"))
_SUMS = ("aten::sum", "aten::mean")
_NORMS = ("aten::linalg_vector_norm", "aten::norm")

Tensor = torch.Tensor


def products(a: Tensor, b: Tensor) -> Tensor:
    """Return the products of all pairs of rows."""
    return a @ b.transpose(-2, -1)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared distances of all pairs of rows."""
    return a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2) - 2 * products(a, b)


def similarities(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine similarities of all pairs of rows."""
    return products(torch.nn.functional.normalize(a, dim=-1), torch.nn.functional.normalize(b, dim=-1))


_FUNCTIONS: dict[PairKind, Callable[[Tensor, Tensor], Tensor]] = {
    "products": products, "distances": distances, "similarities": similarities,
}  # fmt: skip


class Found(NamedTuple):
    """Operators from two broadcast tensors to a sum, in their order, and the two tensors as matrices, ``rows``.

    ``shape`` is that of the tensor that is summed.
    """

    calls: tuple[Call, ...]
    shape: tuple[int, ...]
    kind: PairKind
    rows: tuple[TensorSpec, TensorSpec]

    @property
    def seconds(self) -> float:
        """Seconds of the operators in the step, forward and backward."""
        return sum(call.seconds for call in self.calls)


def costliest_broadcast(log: CallLog) -> Found | None:
    """Return the costliest sum of at least ``MIN_ELEMENTS`` that needs no broadcast tensor; None without one.

    Where operators are not timed, that is the largest one. Only sums that take their whole input from two broadcast
    tensors are found, through operators that nothing else uses.
    """
    readers = readers_of(log)
    sums = [call for call in log.calls if call.name in (*_SUMS, *_NORMS)]
    found = [each for call in sums if (each := _Search(log, readers, call).found()) is not None]
    return max(found, key=lambda each: (each.seconds, math.prod(each.shape)), default=None)


def broadcast_sum(log: CallLog) -> BroadcastSum | None:
    """Return the record of ``costliest_broadcast``, or of costlier comparisons. Time that was not measured is 0."""
    found, compared = costliest_broadcast(log), _comparisons(log)
    if found is None or (compared is not None and compared.total_s > found.seconds):
        return compared
    return BroadcastSum(
        shape=found.shape,
        n_bytes=math.prod(found.shape) * found.rows[0].dtype.itemsize,
        kind=found.kind,
        total_s=found.seconds,
        site=next((call.site for call in found.calls if call.site), ""),
    )


def _comparisons(log: CallLog) -> BroadcastSum | None:
    """Return the costliest operators on tensors that come from comparing the order of all pairs of rows."""
    made: dict[int, tuple[int, ...]] = {}  # call that wrote such a tensor → its shape
    calls: dict[tuple[int, ...], list[Call]] = {}
    for call in log.calls:
        shape = _shape_of_pairs(call, made)
        if shape is not None:
            calls.setdefault(shape, []).append(call)
            if call.out_shape == shape:
                made[call.index] = shape
    shape = max(calls, key=lambda each: sum(call.seconds for call in calls[each]), default=())
    if not shape:
        return None
    return BroadcastSum(
        shape=shape,
        n_bytes=math.prod(shape) * max(dtype.itemsize for call in calls[shape] for dtype in call.out_dtypes),
        kind="comparisons",
        total_s=sum(call.seconds for call in calls[shape]),
        site=next((call.site for call in calls[shape] if call.site), ""),
    )


def _shape_of_pairs(call: Call, made: dict[int, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape of the pairs on which an operator works, if it gets only such tensors and far smaller ones."""
    shape = next((made[spec.source] for spec in call.specs if made.get(spec.source) == spec.shape), None)
    if shape is None and call.name in _COMPARISONS and len(call.specs) == 2:
        shape = call.out_shape
    if shape is None or len(shape) != 2 or shape[0] != shape[1] or math.prod(shape) < MIN_ELEMENTS:
        return None
    least = math.prod(shape) * _SMALL_PART
    is_small = all(made.get(spec.source) == shape or _n_own(spec) <= least for spec in call.specs)
    return shape if is_small else None


def _n_own(spec: TensorSpec) -> int:
    """Return the elements of a tensor, without those of dimensions to which it is expanded."""
    return math.prod(size for size, step in zip(spec.shape, spec.stride, strict=True) if step)


def without_broadcast(log: CallLog) -> list[Work]:
    """Return the operators of ``costliest_broadcast``, and the function in their place."""
    found = costliest_broadcast(log)
    bounds = [function_of(call) for call in found.calls] if found is not None else []
    as_is = tuple(bound for bound in bounds if bound is not None)
    if found is None or len(as_is) < len(bounds):
        return []
    return [Work(found.calls, as_is, ((_FUNCTIONS[found.kind], found.rows, {}),))]


class _Search:
    """Whether one call is such a sum."""

    def __init__(self, log: CallLog, readers: Readers, total: Call) -> None:
        self._log, self._readers, self._total = log, readers, total
        self._calls = [total]
        self._shape = total.specs[0].shape if total.specs else ()
        self._given = total.named

    def found(self) -> Found | None:
        """Return the operators, and the function in their place; None if the call is no such sum."""
        dims = self._given.get("dim")
        if not isinstance(dims, tuple) or len(dims) != 1:
            return None
        if math.prod(self._shape) < MIN_ELEMENTS or not self._total.specs[0].dtype.is_floating_point:
            return None
        matched = self._distance() if self._total.name in _NORMS else self._square() or self._product()
        if matched is None:
            return None
        kind, (first, second) = matched
        rows = self._rows(first, second, dims[0] % len(self._shape))
        return Found(tuple(reversed(self._calls)), self._shape, kind, rows) if rows is not None else None

    def _square(self) -> tuple[PairKind, list[TensorSpec]] | None:
        square = self._writer(self._total.specs[0], "aten::pow")
        if square is None or square.args[1] != 2:
            return None
        return self._difference(square.specs[0])

    def _distance(self) -> tuple[PairKind, list[TensorSpec]] | None:
        if self._given.get("ord", self._given.get("p")) != 2:
            return None
        spec = self._total.specs[0]
        shifted = self._writer(spec, "aten::add")  # a small number, as in pairwise_distance
        return self._difference(shifted.specs[0] if shifted is not None and len(shifted.specs) == 1 else spec)

    def _difference(self, spec: TensorSpec) -> tuple[PairKind, list[TensorSpec]] | None:
        difference = self._writer(spec, "aten::sub")
        if difference is None or len(difference.specs) != 2 or difference.kwargs:
            return None
        return "distances", difference.specs

    def _product(self) -> tuple[PairKind, list[TensorSpec]] | None:
        product = self._writer(self._total.specs[0], "aten::mul")
        if product is None or len(product.specs) != 2:
            return None
        quotients = [self._writer(spec, "aten::div") for spec in product.specs]
        if quotients == [None, None]:
            return "products", product.specs
        if not all(one is not None and len(one.specs) == 2 and len(one.args) == 2 for one in quotients):
            return None
        rows = [one.specs[0] for one in quotients if one is not None]
        norms = [call for call in self._log.calls if call.name in _NORMS and call.specs[:1] in [[row] for row in rows]]
        self._calls += norms
        return ("similarities", rows) if norms else None

    def _writer(self, spec: TensorSpec, name: str) -> Call | None:
        """Return the call that wrote a tensor, if it has this name and nothing else reads all that it writes."""
        call = self._log.calls[spec.source] if spec.source >= 0 else None
        if call is None or call.name != name or call.n != self._total.n:
            return None
        is_whole = (call.out_shape, call.out_stride) == (spec.shape, spec.stride) and spec.shape == self._shape
        if not is_whole or len(self._readers[call.index]) > 1:
            return None
        self._calls.append(call)
        return call

    def _rows(self, first: TensorSpec, second: TensorSpec, dim: int) -> tuple[TensorSpec, TensorSpec] | None:
        """Return both tensors as matrices, the summed dimension last; None if they are not broadcast to all pairs."""
        left, right = self._dims_of(first), self._dims_of(second)
        is_all = left | right == frozenset(place for place, size in enumerate(self._shape) if size > 1)
        if first.dtype != second.dtype or not (is_all and left - right and right - left and dim in left & right):
            return None
        batch, inner = self._size(left & right - {dim}), self._shape[dim]
        shapes = [(self._size(left - right), inner), (self._size(right - left), inner)]
        sizes = [(batch, *shape) if batch > 1 else shape for shape in shapes]
        return first.dense(sizes[0]), second.dense(sizes[1])

    def _dims_of(self, spec: TensorSpec) -> frozenset[int]:
        """Return the dimensions of the sum's input along which a tensor that is broadcast to it differs."""
        offset = len(self._shape) - len(spec.shape)
        sizes = enumerate(zip(spec.shape, spec.stride, strict=True))
        return frozenset(offset + place for place, (size, step) in sizes if size > 1 and step)

    def _size(self, dims: frozenset[int]) -> int:
        return math.prod(self._shape[dim] for dim in dims)
