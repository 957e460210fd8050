"""Find matrices of mostly zeros among the arguments of products and decompositions on a CPU."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lightning_perf.probes.plain import is_plain_tensor
from lightning_perf.records import ZeroKind

MIN_ELEMENTS = 2**12
"""Smaller matrices cost next to nothing."""

_N_SAMPLED, _MOST_NONZERO = 1024, 0.5
"""Elements that are counted first, and the fraction of nonzeros among them above which the others are not."""

MAX_FRACTION = 0.05
"""Nonzero elements of a matrix that is called sparse. With more, a product without zeros is hardly faster."""

PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1}  # the place of the first operand
_DECOMPOSITIONS = {
    "aten::linalg_cholesky_ex", "aten::linalg_solve_triangular", "aten::linalg_inv_ex", "aten::_linalg_det",
    "aten::_linalg_slogdet", "aten::_linalg_solve_ex", "aten::_linalg_eigh",
}  # fmt: skip


_SCATTERING = {"aten::index_put_", "aten::_index_put_impl_", "aten::scatter_", "aten::scatter_add_"}
EMPTY = {"aten::zeros", "aten::new_zeros", "aten::zeros_like"}
_SCALING = {"aten::mul", "aten::div", "aten::mul_", "aten::div_"}


class Zeros(NamedTuple):
    """A matrix of mostly zeros among the arguments of an operator: its place, kind, and its fraction of nonzeros."""

    place: int
    kind: ZeroKind
    fraction: float


def zeros_in(name: str, args: Sequence[Any]) -> Zeros | None:
    """Return the first matrix of mostly zeros in an operator's arguments on the CPU; None without one."""
    if name in _DECOMPOSITIONS:
        found = _zeros(args[0], 0)
        return found if found is not None and found.kind == "diagonal" else None
    if name not in PRODUCTS:
        return None
    first = PRODUCTS[name]
    found = _zeros(args[first], first)
    return found if found is not None else _zeros(args[first + 1], first + 1)


def _zeros(value: Any, place: int) -> Zeros | None:
    if not is_plain_tensor(value) or value.device.type != "cpu" or value.layout is not torch.strided:
        return None
    matrix = value.detach()
    if matrix.dim() < 2 or matrix.numel() < MIN_ELEMENTS or min(matrix.shape[-2:]) < 2:
        return None
    extent = 1 + sum((size - 1) * step for size, step in zip(matrix.shape, matrix.stride(), strict=True))
    part = matrix.as_strided((min(_N_SAMPLED, extent),), (_step(extent, *matrix.shape[-2:]),))
    if int(torch.count_nonzero(part)) > _MOST_NONZERO * part.numel():
        return None
    n_nonzero = int(torch.count_nonzero(matrix))
    fraction = n_nonzero / matrix.numel()
    if not 0 < fraction <= max(MAX_FRACTION, 1 / min(matrix.shape[-2:])):
        return None
    rows = math.prod(matrix.shape[:-1])
    is_square = matrix.shape[-1] == matrix.shape[-2]
    if is_square and int(torch.count_nonzero(matrix.diagonal(dim1=-2, dim2=-1))) == n_nonzero:
        return Zeros(place, "diagonal", fraction)
    if value.requires_grad:
        return None  # its zeros get gradients, too, as in a straight-through estimate
    if n_nonzero <= rows and int(torch.count_nonzero(matrix, dim=-1).amax()) == 1:
        return Zeros(place, "one-hot", fraction)
    return Zeros(place, "sparse", fraction) if fraction <= MAX_FRACTION else None


def is_made_from_indices(calls: Sequence[Any], index: int) -> bool:
    """Return whether a call of a step made a dense matrix from the indices of its nonzero elements, or scaled one."""
    while index >= 0 and calls[index].name in _SCALING:
        index = _written_before(calls, index)
    if index >= 0 and calls[index].name == "aten::_to_dense":
        return True
    is_scattered = False
    while index >= 0 and calls[index].name in _SCATTERING and torch.bool not in {s.dtype for s in calls[index].specs}:
        is_scattered, index = True, _written_before(calls, index)
    return is_scattered and index >= 0 and calls[index].name in EMPTY


def _written_before(calls: Sequence[Any], index: int) -> int:
    """Return the call that wrote the first argument of a call; -1 if it is not known."""
    before: int = getattr(calls[index].args[0], "source", -1)
    return before if before < index else -1  # the first of equal calls may stand for a later one


def _step(extent: int, n_rows: int, n_columns: int) -> int:
    """Return how far apart elements are sampled, so that they do not lie on one or two diagonals only."""
    steps = range(max(1, extent // _N_SAMPLED), 1, -1)
    near = (1, n_columns - 1) if n_rows == n_columns else ()
    good = (n for n in steps if math.gcd(n, n_rows * n_columns) == 1 and n % n_columns not in near)
    return next(good, 1)
