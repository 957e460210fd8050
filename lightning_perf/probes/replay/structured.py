"""Operators on operands that are made of smaller ones: factorized matrices, outer products, one index for each row."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from lightning_perf.probes.sampled_steps.zeros import EMPTY

from .calls import SCATTERS, Call, CallLog, TensorSpec
from .functions import Bound, Cheaper, Readers, Work, function_of, readers_of

Tensor = torch.Tensor

_CONVOLUTIONS = {2: torch.conv2d, 3: torch.conv3d}


def factorized_again(log: CallLog) -> Iterator[Cheaper]:
    """Find Cholesky decompositions of a product that its factor is known of, e.g. for a normal distribution.

    A triangular factor is what the decomposition gives. Of a thin one to whose product a diagonal is added, a matrix
    with as many rows as it has columns is decomposed instead (https://en.wikipedia.org/wiki/Woodbury_matrix_identity).
    A decomposition may only check that a matrix is positive definite, e.g. a precision matrix, and a product may be
    part of the loss itself.
    """
    readers = readers_of(log)
    for call in log.calls:
        if call.name != "aten::linalg_cholesky_ex" or not call.specs or not _is_factor_read(call, readers):
            continue
        matrix = call.specs[0]
        between = log.calls[matrix.source] if matrix.source >= 0 else call
        product = between
        if between.name == "aten::add" and between.named["alpha"] == 1:
            writers = {spec: log.calls[spec.source].name for spec in between.specs if spec.source >= 0}
            added = next((spec for spec, name in writers.items() if name == "aten::diag_embed"), None)
            others = [spec.source for spec in between.specs if spec is not added and spec.source >= 0]
            product = log.calls[others[0]] if added is not None and len(others) == 1 else call
        is_thin = between is not product
        if product.structure != ("thin" if is_thin else "triangular") or call.n % product.n:
            continue
        factor = product.specs[0]
        calls = tuple({each.index: each for each in (product, between, call)}.values())
        reading = [one for each in (product, between) for one in readers[each.index] if one not in calls]
        if any(one.has_backward for one in reading):
            continue
        if is_thin:
            diagonal = factor.dense(factor.shape[:-1])
            as_is: Bound = _of_thin_product, (factor, diagonal), {}
            treated: Bound = _of_capacitance, (factor, diagonal), {}
        else:
            as_is, treated = (_of_product, (factor,), {}), (torch.tril, (factor,), {})
        size = factor.shape[-1]
        yield Cheaper("factor", Work(calls, (as_is,), (treated,)), product.site, matrix.shape, size, int(is_thin))


def _is_factor_read(call: Call, readers: Readers) -> bool:
    """Return whether anything reads the factor that a decomposition gives, not only whether it succeeded."""
    specs = (spec for reader in readers[call.index] for spec in reader.specs)
    return any(spec.source == call.index and spec.dtype.is_floating_point for spec in specs)


def _of_product(factor: Tensor) -> Any:
    product = factor @ factor.mT
    with torch.no_grad():  # random numbers need not be positive definite
        product.diagonal(dim1=-2, dim2=-1).add_(factor.shape[-1])
    return torch.linalg.cholesky_ex(product).L


def _of_thin_product(factor: Tensor, diagonal: Tensor) -> Any:
    return torch.linalg.cholesky_ex(factor @ factor.mT + torch.diag_embed(1 + diagonal)).L


def _of_capacitance(factor: Tensor, diagonal: Tensor) -> Any:
    one = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.cholesky_ex(one + factor.mT @ (factor / (1 + diagonal).unsqueeze(-1))).L


def separable_kernels(log: CallLog) -> Iterator[Cheaper]:
    """Find convolutions with outer products, e.g. boxes and Gaussians; one along each dimension does the same."""
    for call in log.calls:
        bound = function_of(call) if call.structure == "separable" else None
        if bound is None or not isinstance(call.named["input"], TensorSpec):
            continue
        kernel, named = call.specs[1], call.named
        n_dims = len(kernel.shape) - 2
        if n_dims not in _CONVOLUTIONS or named["groups"] != kernel.shape[0] or named["transposed"]:
            continue
        if {*named["stride"], *named["dilation"]} != {1} or named["bias"] is not None:
            continue
        treated = tuple(_one_by_one(call.named["input"], kernel, named["padding"]))
        yield Cheaper("kernel", Work((call,), (bound,), treated), call.site, kernel.shape[2:])


def _one_by_one(given: TensorSpec, kernel: TensorSpec, padding: tuple[int, ...]) -> Iterator[Bound]:
    """Yield a convolution along each dimension."""
    n_dims, groups = len(kernel.shape) - 2, kernel.shape[0]
    for dim in range(n_dims):
        taps = tuple(kernel.shape[2 + i] if i == dim else 1 for i in range(n_dims))
        around = tuple(padding[i] if i == dim else 0 for i in range(n_dims))
        ones = (1,) * n_dims
        weight = kernel.dense((groups, 1, *taps))
        yield _CONVOLUTIONS[n_dims], (given, weight, None, ones, around, ones, groups), {}
        sizes = (size + 2 * around[i] - taps[i] + 1 for i, size in enumerate(given.shape[2:]))
        given = given.dense((*given.shape[:2], *sizes))


def scattered_rows(log: CallLog) -> Iterator[Cheaper]:
    """Find scatters whose index is expanded along rows: functions that take an index for each row exist."""
    for call in log.calls:
        if call.name not in SCATTERS or len(call.specs) != 3:
            continue
        named = call.named
        target, index, source = named["self"], named["index"], named["src"]
        is_expanded = len(index.shape) > 1 and not any(index.stride[1:]) and index.stride[0] > 0
        if named["dim"] % len(index.shape) or not is_expanded or index.shape != source.shape:
            continue
        if target.shape[1:] != source.shape[1:]:
            continue  # columns without an index stay as they are
        generator = torch.Generator().manual_seed(0)
        rows = torch.randint(target.shape[0], index.shape[:1], generator=generator)
        reduce, is_added = named.get("reduce", "sum"), named.get("include_self", True)
        if reduce not in ("sum", "mean"):
            continue  # index_reduce is experimental
        if not is_added and (target.source < 0 or log.calls[target.source].name not in EMPTY):
            continue  # rows without an index keep their values
        options = {"reduce": reduce, "include_self": is_added}
        as_is: Bound = partial(_scattered, rows), (target, source), options
        treated: Bound = partial(_by_rows, rows), (target, source), options
        function = "index_add(0, index, x)" + " / degree" * (reduce == "mean")
        work = Work((call,), (as_is,), (treated,))
        yield Cheaper("scatter", work, call.site, source.shape, target.shape[0], function=function)


def _scattered(rows: Tensor, target: Tensor, source: Tensor, *, reduce: str, include_self: bool) -> Tensor:
    index = rows.to(source.device).view(-1, *(1 for _ in source.shape[1:])).expand_as(source)
    if reduce == "sum" and include_self:
        return target.scatter_add(0, index, source)
    return target.scatter_reduce(0, index, source, reduce, include_self=include_self)


def _by_rows(rows: Tensor, target: Tensor, source: Tensor, *, reduce: str, include_self: bool) -> Tensor:
    rows = rows.to(source.device)
    total = (target if include_self else torch.zeros_like(target)).index_add(0, rows, source)
    if reduce == "sum":
        return total
    ones = total.new_ones(len(rows))  # `bincount` waits for a device
    degree = (total.new_zeros(len(target)).index_add(0, rows, ones) + include_self).clamp(min=1)
    return total / degree.view(-1, *(1 for _ in source.shape[1:]))
