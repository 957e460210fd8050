"""Gradients and updates of embedding tables: of all rows, or only of those that a batch looks up."""

import math
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from lightning_perf.probes.model.operators import EMBEDDING_BAG

from .calls import CallLog, TensorSpec
from .compare import Item, Stopwatch
from .optimizer import rebuilt, step_once

MAX_ELEMENTS = 2**20
"""Elements of a copy: of a larger table, so many rows are updated. Fewer would all stay in caches."""

MAX_SPARSE_ELEMENTS = 2**23
"""Elements of a copy of which a few rows are updated: as in a training, most rows must not be in caches."""

_BYTES_PER_ELEMENT = 4 * 4  # itself, two states, and what an update creates
_MOST_LOOKED_UP = 2**21  # elements

_TAKE_SPARSE = {"Adagrad": torch.optim.Adagrad, "SGD": torch.optim.SGD, "SparseAdam": torch.optim.SparseAdam,
                "Adam": torch.optim.SparseAdam, "AdamW": torch.optim.SparseAdam}  # fmt: skip
"""The optimizer for sparse gradients in place of each: the same, or the sparse variant of Adam."""

_MODE_MAX = 2  # of an EmbeddingBag, whose gradient cannot be sparse

_KEPT = ("lr", "betas", "eps", "lr_decay")


class Table(NamedTuple):
    """Embedding tables of one shape, and the rows that one of them looks up in a step.

    ``n_bags`` is the number of bags that an ``EmbeddingBag`` reduces them to, 0 for an ``Embedding``.
    """

    shape: tuple[int, int]
    n_tables: int
    n_lookups: int
    n_bags: int = 0


def tables_in(log: CallLog) -> list[Table]:
    """Return the trained embedding tables of a step."""
    weights: dict[tuple[int, int], set[int]] = {}
    n_lookups: Counter[tuple[int, int]] = Counter()
    n_bags: Counter[tuple[int, int]] = Counter()
    of_rows: set[tuple[int, int]] = set()  # shapes that some embedding looks up row by row
    for call in log.calls:
        is_bag = call.name == EMBEDDING_BAG
        if not (is_bag or call.name == "aten::embedding") or call.named["sparse"]:
            continue
        if is_bag and call.named["mode"] == _MODE_MAX:
            continue
        if not all(isinstance(one, TensorSpec) for one in call.args[:2]):
            continue
        weight, indices = call.args[:2]
        if weight.needs_grad and weight.source < 0 and len(weight.shape) == 2:
            weights.setdefault(weight.shape, set()).update(call.weights)
            n_lookups[weight.shape] += call.n * math.prod(indices.shape)
            if is_bag:
                n_bags[weight.shape] += call.n * call.out_shape[0]
            else:
                of_rows.add(weight.shape)
    return [
        Table(shape, len(found), n_lookups[shape] // len(found), n_bags[shape] // len(found) * (shape not in of_rows))
        for shape, found in weights.items()
        if found
    ]


class _Side(NamedTuple):
    """A copy of a table, its optimizer, and the number of rows that one run looks up."""

    table: torch.Tensor
    optimizer: Any
    n_lookups: int


class TableItem:
    """The gradient of a table for one batch and its update, dense as it is and sparse with the treatment.

    The user's optimizer is only read. A dense update takes time in proportion to the rows, a sparse one to those looked
    up. If only a part of the rows is copied, the dense side gets the same part of the lookups; the sparse side counts
    more, since more of its lookups repeat a row. As in a training, each run looks up other rows.

    Raises:
        ValueError: The optimizer has no sparse variant, does not update this table, or too many rows are looked up.
    """

    def __init__(
        self,
        table: Table,
        optimizer: Any,
        n_elements: int = MAX_ELEMENTS,
        n_sparse_elements: int = MAX_SPARSE_ELEMENTS,
    ) -> None:
        group = _group_of(table, optimizer)
        sparse_optimizer = _TAKE_SPARSE.get(type(optimizer).__name__)
        if group is None or sparse_optimizer is None or not type(optimizer).__module__.startswith("torch.optim."):
            raise ValueError(f"{type(optimizer).__name__} does not update this table, or has no sparse variant")
        if group.get("momentum"):
            raise ValueError("momentum keeps all rows changing")
        n_lookups, (n_all, width) = table.n_lookups, table.shape
        if n_lookups * width > _MOST_LOOKED_UP:
            raise ValueError(f"{n_lookups:,} rows of a table that are looked up are too many to copy")
        n_dense = min(n_all, max(1, n_elements // width))
        n_sparse = min(n_all, max(1, n_sparse_elements // width, 2 * n_lookups))
        distinct = [n * -math.expm1(-n_lookups / n) for n in (n_all, n_sparse)]  # expected rows
        self.weight = table.n_tables * n_all / n_dense
        self.treated_weight = table.n_tables * distinct[0] / distinct[1]
        self._table = table
        first = group["params"][0]
        make = {"dtype": first.dtype, "device": first.device}
        self._generator = torch.Generator(device=first.device).manual_seed(0)
        self._incoming = torch.rand(n_lookups, width, generator=self._generator, **make)
        dense, sparse = (torch.full((n, width), 0.5, **make).requires_grad_() for n in (n_dense, n_sparse))
        kept = {name: value for name, value in group.items() if name in _KEPT}
        arguments = {name: float(one) if isinstance(one, torch.Tensor) else one for name, one in kept.items()}
        if sparse_optimizer is torch.optim.SparseAdam:
            arguments.pop("lr_decay", None)
        self._sides = {
            False: _Side(dense, rebuilt(type(optimizer), [(group, [dense])], {}), max(1, n_lookups * n_dense // n_all)),
            True: _Side(sparse, sparse_optimizer([sparse], **arguments), n_lookups),
        }
        for is_treated, side in self._sides.items():
            self._update(side, self._looked_up(side, is_treated))
            for state in side.optimizer.state[side.table].values():
                if isinstance(state, torch.Tensor) and state.shape == side.table.shape:
                    state.fill_(1e-3)  # the system gives memory to a state when it is written first

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Make the gradient and step once; return the marks around both."""
        side = self._sides[is_treated]
        rows = self._looked_up(side, is_treated)
        begin = watch.mark()
        self._update(side, rows)
        end = watch.mark()
        return [(begin, end)]

    def _looked_up(self, side: _Side, is_treated: bool) -> torch.Tensor:
        """Return random rows, or their sums over bags of one size."""
        n_rows, device = len(side.table), side.table.device
        indices = torch.randint(n_rows, (side.n_lookups,), generator=self._generator, device=device)
        with torch.enable_grad():
            if not self._table.n_bags:
                return F.embedding(indices, side.table, sparse=is_treated)
            size = max(1, self._table.n_lookups // self._table.n_bags)
            offsets = torch.arange(0, len(indices), size, device=device)
            return F.embedding_bag(indices, side.table, offsets, mode="sum", sparse=is_treated)

    def _update(self, side: _Side, rows: torch.Tensor) -> None:
        (side.table.grad,) = torch.autograd.grad(rows, side.table, self._incoming[: len(rows)])
        step_once(side.optimizer)
        side.table.grad = None


def table_items(log: CallLog, optimizers: list[Any], n_batches: int, free_bytes: int) -> list[Item]:
    """Return an item for each shape of tables, which fit into ``free_bytes``.

    Raises:
        ValueError: Tables cannot be replayed.
        MemoryError: Copies of as many rows as must be copied do not fit.
    """
    if n_batches > 1:
        raise ValueError("gradients of several batches are accumulated")
    tables = tables_in(log)
    least = sum(min(n_rows, 2 * one.n_lookups) * width + min(n_rows * width, MAX_ELEMENTS)
                for one in tables for n_rows, width in [one.shape])  # fmt: skip
    if least * _BYTES_PER_ELEMENT > free_bytes:
        raise MemoryError(f"{free_bytes / 2**20:.0f} MiB are free to replay in: not enough for copies of the tables")
    n_elements = min(MAX_SPARSE_ELEMENTS, free_bytes // _BYTES_PER_ELEMENT) // max(1, len(tables))
    return [
        TableItem(
            table,
            next((one for one in optimizers if _group_of(table, one) is not None), optimizers[0]),
            n_sparse_elements=n_elements,
        )
        for table in tables
    ]


def _group_of(table: Table, optimizer: Any) -> dict[str, Any] | None:
    """Return the group of parameters that holds a table; None without one."""
    return next((one for one in optimizer.param_groups for each in one["params"] if each.shape == table.shape), None)
