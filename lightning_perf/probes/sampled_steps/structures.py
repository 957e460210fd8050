"""Find operands on a CPU that are made of smaller ones: a matrix and its transpose, one-dimensional kernels."""

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch

from lightning_perf.probes.plain import is_plain_tensor, storage_address

Structure: TypeAlias = Literal["", "triangular", "thin", "separable"]
"""A triangular matrix, or one of few columns, times its transpose; a convolution whose kernels are outer products."""

MIN_TAPS = 25
"""Elements of a kernel; along each dimension at a time, smaller ones hardly take fewer operations."""

_TOLERANCE = 1e-4  # of the largest element


def structure_of(name: str, args: Sequence[Any]) -> Structure:
    """Return what the operands of an operator are made of; empty if it is another, or nothing is found."""
    if name in ("aten::mm", "aten::bmm"):
        return _of_product(*args[:2])
    if name == "aten::convolution" and _is_separable(args[1]):
        return "separable"
    return ""


def _of_product(one: Any, other: Any) -> Structure:
    if not _is_on_cpu(one) or not _is_on_cpu(other) or storage_address(one) != storage_address(other):
        return ""
    if _layout(one) != _layout(other.mT) or one.shape[-1] > one.shape[-2]:
        return ""
    if 2 * one.shape[-1] <= one.shape[-2]:
        return "thin"
    is_square = one.shape[-1] == one.shape[-2]
    return "triangular" if is_square and not torch.count_nonzero(one.detach().triu(1)) else ""


def _layout(matrix: torch.Tensor) -> tuple[Any, ...]:
    return matrix.shape, matrix.stride(), matrix.storage_offset()


def _is_separable(weight: Any) -> bool:
    """Return whether each kernel of a convolution channel by channel is the product of its sums along the dimensions.

    Kernels that are trained, and those whose elements add up to 0, are not.
    """
    if not _is_on_cpu(weight) or weight.requires_grad or not weight.is_floating_point():
        return False
    dims = range(2, weight.dim())
    if weight.shape[1:2] != (1,) or sum(weight.shape[dim] > 1 for dim in dims) < 2:
        return False
    if math.prod(weight.shape[2:]) < MIN_TAPS:
        return False
    kernels = weight.detach()
    product = math.prod(kernels.sum([dim for dim in dims if dim != kept], keepdim=True) for kept in dims)
    total = kernels.sum(list(dims), keepdim=True) ** (len(dims) - 1)
    # Not `<=`: kernels whose rows each add up to 0 have no such product.
    return bool(((product - kernels * total).abs() < _TOLERANCE * kernels.abs().amax() * total.abs()).all())


def _is_on_cpu(value: Any) -> bool:
    return is_plain_tensor(value) and value.device.type == "cpu" and value.layout is torch.strided
