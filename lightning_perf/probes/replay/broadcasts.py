"""Find sums over products or squared differences of broadcast tensors: matrix multiplications written otherwise."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from lightning_perf.records import BroadcastProduct

from .calls import Call, CallLog, TensorSpec
from .functions import Work, function_of

MIN_ELEMENTS = 2**16
"""Smaller tensors stay in a core's own cache."""

_SUMS = ("aten::sum", "aten::mean", "aten::linalg_vector_norm", "aten::norm")
_BILINEAR = (
    "aten::mul",
    "aten::sub",
    "aten::div",
    "aten::pow",
    "aten::add",
    "aten::neg",
    "aten::clone",
    "aten::_to_copy",
)
_WITH_A_NUMBER = ("aten::add", "aten::pow")
"""These are part of a product only with a number as the second argument: a square, or a small constant."""
_MAX_CALLS = 16
_MAX_STEPS_FROM_NORM = 4  # a clamp, copies


class Found(NamedTuple):
    """Calls from the broadcast tensors to the sum, and the equivalent matrix multiplication.

    Attributes:
        calls: The sum first.
        shape: Shape of the tensor that is summed.
        left: The first matrix, or a batch of them; the second is ``right``.
    """

    calls: tuple[Call, ...]
    shape: tuple[int, ...]
    left: TensorSpec
    right: TensorSpec


def broadcast_products(log: CallLog) -> list[Found]:
    """Return sums that a matrix multiplication could replace, of at least ``MIN_ELEMENTS``, costliest first."""
    found = [each for call in log.calls if call.name in _SUMS for each in _product_of(log, call)]
    return sorted(found, key=lambda each: -_seconds(each))


def largest_broadcast(log: CallLog) -> BroadcastProduct | None:
    """Return the costliest such sum of a step; its time is 0 if the calls were not timed."""
    found = next(iter(broadcast_products(log)), None)
    if found is None:
        return None
    site = next((call.site for call in found.calls if call.site), "")
    n_bytes = math.prod(found.shape) * found.left.dtype.itemsize
    return BroadcastProduct(shape=found.shape, n_bytes=n_bytes, total_s=_seconds(found), site=site)


def matrix_multiplications(log: CallLog) -> list[Work]:
    """Return these sums with their products, and a matrix multiplication in place of each."""
    works = []
    for found in broadcast_products(log):
        bounds = [function_of(call) for call in reversed(found.calls)]
        as_is = tuple(bound for bound in bounds if bound is not None)
        if len(as_is) == len(bounds):
            works.append(Work(found.calls, as_is, ((torch.matmul, (found.left, found.right), {}),)))
    return works


def _seconds(found: Found) -> float:
    return sum(call.seconds for call in found.calls)


def _product_of(log: CallLog, total: Call) -> Iterator[Found]:
    """Yield the matrix multiplication that a sum is, if it is one."""
    dim = _summed_dim(total)
    if dim is None:
        return
    shape = total.specs[0].shape
    calls, leaves, pending = [total], [], [total.specs[0]]
    while pending:
        spec = pending.pop()
        if _dims_of(spec, shape) != _dims(shape):
            leaves.append(spec)
            continue
        writer = log.calls[spec.source] if spec.source >= 0 else None
        if writer is None or not _is_bilinear(writer, shape) or len(calls) == _MAX_CALLS:
            return
        if writer not in calls:
            calls.append(writer)
            pending += [each for each in writer.specs if each.shape]
    calls += [norm for leaf in leaves if (norm := _repeated_norm(log, leaf, shape)) is not None and norm not in calls]
    factors = {_dims_of(leaf, shape): leaf for leaf in leaves if dim in _dims_of(leaf, shape)}
    for left, first in factors.items():
        for right, second in factors.items():
            if left - right and right - left and all(each <= left or each <= right for each in factors):
                batch, inner = _size(shape, left & right - {dim}), shape[dim]
                rows, columns = _size(shape, left - right), _size(shape, right - left)
                yield Found(
                    tuple(calls),
                    shape,
                    _matrix(first, (batch, rows, inner), (rows * inner, inner, 1)),
                    _matrix(second, (batch, inner, columns), (inner * columns, 1, inner)),
                )
                return


def _summed_dim(call: Call) -> int | None:
    """Return the one dimension that a call sums over; None if there are several, or too few elements."""
    shape = call.specs[0].shape
    names = [argument.name for argument in call.func._schema.arguments]
    dims: Any = {**dict(zip(names, call.args, strict=False)), **call.kwargs}.get("dim")
    if not isinstance(dims, tuple) or len(dims) != 1 or math.prod(shape) < MIN_ELEMENTS:
        return None
    return int(dims[0] % len(shape))


def _is_bilinear(call: Call, shape: tuple[int, ...]) -> bool:
    tensors = [spec for spec in call.specs if spec.shape]
    if call.name not in _BILINEAR or call.n_out != math.prod(shape):
        return False
    if call.name == "aten::div" and len(tensors) == 2 and _dims_of(tensors[1], shape) == _dims(shape):
        return False
    if call.name == "aten::pow" and call.args[1] != 2:
        return False
    return call.name not in _WITH_A_NUMBER or len(tensors) == 1


def _repeated_norm(log: CallLog, factor: TensorSpec, shape: tuple[int, ...]) -> Call | None:
    """Return the sum over a broadcast tensor that a factor was made of, which computes each norm many times."""
    source = factor.source
    for _ in range(_MAX_STEPS_FROM_NORM):
        if source < 0:
            break
        call = log.calls[source]
        if call.name in _SUMS and call.specs[0].shape == shape and _dims_of(call.specs[0], shape) != _dims(shape):
            return call
        source = call.specs[0].source if call.specs and call.n_out < math.prod(shape) else -1
    return None


def _dims(shape: tuple[int, ...]) -> frozenset[int]:
    return frozenset(place for place, size in enumerate(shape) if size > 1)


def _dims_of(spec: TensorSpec, shape: tuple[int, ...]) -> frozenset[int]:
    """Return the dimensions of ``shape`` along which a tensor that is broadcast to it differs."""
    offset = len(shape) - len(spec.shape)
    sizes = enumerate(zip(spec.shape, spec.stride, strict=True))
    return frozenset(offset + place for place, (size, step) in sizes if size > 1 and step)


def _size(shape: tuple[int, ...], dims: frozenset[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


def _matrix(spec: TensorSpec, shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorSpec:
    """Return a matrix, or a batch of more than one."""
    skipped = int(shape[0] == 1)
    return spec._replace(shape=shape[skipped:], stride=stride[skipped:], source=-1)
