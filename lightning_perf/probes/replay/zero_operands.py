"""Replay products and decompositions of matrices that are mostly zeros, without the zeros."""

import warnings
from functools import partial

import torch

from lightning_perf.probes.sampled_steps.zeros import PRODUCTS, Zeros
from lightning_perf.records import ZeroOperand

from .calls import Call, CallLog, TensorSpec
from .functions import Bound, Work, costliest, function_of

Tensor = torch.Tensor


def zero_operand(log: CallLog) -> ZeroOperand | None:
    """Return the record of the costliest kind of such operators; None without any."""
    found = _costliest(log)
    if not found:
        return None
    call, zeros = max(found, key=lambda each: each[0].seconds)
    return ZeroOperand(
        kind=zeros.kind,
        shape=_matrix(call, zeros).shape,
        nonzero_fraction=zeros.fraction,
        is_product=call.name in PRODUCTS,
        n_operators=sum(call.n for call, _ in found),
        total_s=sum(call.seconds for call, _ in found),
        site=call.site,
    )


def without_zeros(log: CallLog) -> list[Work]:
    """Return the operators of ``zero_operand``, and functions in their place that leave the zeros out."""
    works = (_work(call, zeros) for call, zeros in _costliest(log))
    return [work for work in works if work is not None]


def _costliest(log: CallLog) -> list[tuple[Call, Zeros]]:
    """Return the calls with matrices of the kind that takes the most time."""
    found = ((call, call.zeros) for call in log.calls if call.zeros is not None)
    return costliest(found, lambda each: each[1].kind, lambda each: each[0].seconds)


def _matrix(call: Call, zeros: Zeros) -> TensorSpec:
    spec: TensorSpec = call.args[zeros.place]
    return spec


def _work(call: Call, zeros: Zeros) -> Work | None:
    """Return the work of one call; None where the operator cannot be replayed."""
    bound, matrix = function_of(call), _matrix(call, zeros)
    if bound is None:
        return None
    if call.name not in PRODUCTS:
        entries = matrix.dense(matrix.shape[:-1])
        others = tuple(spec for spec in call.specs if spec is not matrix)
        if call.name == "aten::linalg_cholesky_ex":  # random numbers are not positive definite
            bound = (lambda each: torch.linalg.cholesky_ex(torch.diag_embed(1 + each)), (entries,), {})
        return Work((call,), (bound,), ((_elementwise, (entries, *others), {}),))
    first = PRODUCTS[call.name]
    is_left = zeros.place == first
    treated = _product(matrix, call.args[2 * first + 1 - zeros.place], zeros, is_left, call.args[:first])
    return Work((call,), (bound,), (treated,)) if treated is not None else None


def _product(
    matrix: TensorSpec, other: TensorSpec, zeros: Zeros, is_left: bool, bias: tuple[TensorSpec, ...]
) -> Bound | None:
    """Return the product of a matrix of mostly zeros, on the left or on the right of another one, without the zeros."""
    if zeros.kind == "diagonal":
        return partial(_scaled, -1 if is_left else -2), (matrix.dense(matrix.shape[:-1]), other, *bias), {}
    if len(matrix.shape) != 2 or matrix.needs_grad:
        return None
    if zeros.kind == "one-hot" and is_left:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(matrix.shape[1], matrix.shape[:1], generator=generator)
        return partial(_selected, rows), (other, *bias), {}
    return partial(_sparse_product, _sparse(matrix, zeros.fraction, not is_left), not is_left), (other, *bias), {}


def _elementwise(entries: Tensor, *others: Tensor) -> Tensor:
    """Do what a decomposition of a diagonal matrix amounts to: one operation for each entry."""
    return others[0] / (1 + entries).unsqueeze(-1) if others else (1 + entries).sqrt()


def _scaled(dim: int, entries: Tensor, other: Tensor, *bias: Tensor) -> Tensor:
    return sum(bias, other * entries.unsqueeze(dim))


def _selected(rows: Tensor, table: Tensor, *bias: Tensor) -> Tensor:
    return sum(bias, table.index_select(0, rows))


def _sparse(spec: TensorSpec, fraction: float, is_transposed: bool) -> Tensor:
    """Return a sparse matrix in CSR format with this fraction of nonzero elements, evenly spread."""
    n_rows, n_columns = reversed(spec.shape) if is_transposed else spec.shape
    n_nonzero = max(1, round(fraction * n_rows * n_columns))
    places = (torch.arange(n_nonzero) * (n_rows * n_columns) // n_nonzero).clamp(max=n_rows * n_columns - 1)
    found = torch.sparse_coo_tensor(
        torch.stack((places // n_columns, places % n_columns)),
        torch.ones(n_nonzero, dtype=spec.dtype),
        (n_rows, n_columns),
        check_invariants=False,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR")  # that it is in beta state
        return found.coalesce().to_sparse_csr()


def _sparse_product(matrix: Tensor, is_transposed: bool, other: Tensor, *bias: Tensor) -> Tensor:
    """Return the product of a sparse matrix with a dense one, or of a dense one with a transposed sparse one."""
    return sum(bias, (matrix @ other.mT).mT if is_transposed else matrix @ other)
