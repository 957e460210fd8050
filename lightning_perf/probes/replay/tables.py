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
        is_bag = call.name == EMBEDDING_BAG and not call.named["sparse"] and call.named["mode"] != _MODE_MAX
        if not (is_bag or call.name == "aten::embedding"):
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


class TableItem:
    """The gradient of a table for one batch and its update, dense as it is and sparse with the treatment.

    The user's optimizer is only read. A dense update takes time in proportion to the rows, a sparse one to the lookups:
    where a part of the rows is copied, the dense side gets as small a part of the lookups, and the sparse one counts
    more, since fewer of its lookups are of different rows.

    Raises:
        ValueError: The optimizer has no sparse variant, does not update this table, or too many rows are looked up.
    """

    def __init__(self, table: Table, optimizer: Any, n_elements: int = MAX_ELEMENTS) -> None:
        group = _group_of(table, optimizer)
        kind = _TAKE_SPARSE.get(type(optimizer).__name__)
        if group is None or kind is None or not type(optimizer).__module__.startswith("torch.optim."):
            raise ValueError(f"{type(optimizer).__name__} does not update this table, or has no sparse variant")
        if group.get("momentum"):
            raise ValueError("momentum keeps all rows changing")
        if table.n_lookups * table.shape[1] > _MOST_LOOKED_UP:
            raise ValueError(f"{table.n_lookups:,} rows of a table that are looked up are too many to copy")
        width = table.shape[1]
        n_rows = min(table.shape[0], max(1, n_elements // width, 2 * table.n_lookups))
        distinct = [n * -math.expm1(-table.n_lookups / n) for n in (table.shape[0], n_rows)]  # expected rows
        self.treated_weight = table.n_tables * distinct[0] / distinct[1]
        self.weight = table.n_tables * table.shape[0] / n_rows
        first = group["params"][0]
        generator = torch.Generator(device=first.device).manual_seed(0)
        make = {"generator": generator, "device": first.device}
        self._table = torch.rand(n_rows, width, dtype=first.dtype, **make).requires_grad_()
        indices = torch.randint(n_rows, (table.n_lookups,), **make)
        n_dense = max(1, table.n_lookups * n_rows // table.shape[0])
        with torch.enable_grad():
            self._rows = {
                False: _look_up(table, self._table, indices[:n_dense], is_sparse=False),
                True: _look_up(table, self._table, indices, is_sparse=True),
            }
        incoming = torch.rand(self._rows[True].shape, dtype=first.dtype, **make)
        self._incoming = {side: incoming[: len(rows)] for side, rows in self._rows.items()}
        sparse = {name: value for name, value in group.items() if name in _KEPT}
        if kind is torch.optim.SparseAdam:
            sparse.pop("lr_decay", None)
        self._sides = {
            False: rebuilt(type(optimizer), [(group, [self._table])], {}),
            True: kind([self._table], **{name: _number(value) for name, value in sparse.items()}),
        }

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Make the gradient and step once; return the marks around both."""
        begin = watch.mark()
        (self._table.grad,) = torch.autograd.grad(
            self._rows[is_treated], self._table, self._incoming[is_treated], retain_graph=True
        )
        step_once(self._sides[is_treated])
        end = watch.mark()
        self._table.grad = None
        return [(begin, end)]


def _look_up(table: Table, weight: torch.Tensor, indices: torch.Tensor, is_sparse: bool) -> torch.Tensor:
    """Return the rows that are looked up, or their sums over bags of one size."""
    if not table.n_bags:
        return F.embedding(indices, weight, sparse=is_sparse)
    size = max(1, table.n_lookups // table.n_bags)
    offsets = torch.arange(0, len(indices), size, device=indices.device)
    return F.embedding_bag(indices, weight, offsets, mode="sum", sparse=is_sparse)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value


def table_items(log: CallLog, optimizers: list[Any], n_batches: int) -> list[Item]:
    """Return an item for each shape of tables.

    Raises:
        ValueError: Tables cannot be replayed.
    """
    if n_batches > 1:
        raise ValueError("gradients of several batches are accumulated")
    return [
        TableItem(table, next((one for one in optimizers if _group_of(table, one) is not None), optimizers[0]))
        for table in tables_in(log)
    ]


def _group_of(table: Table, optimizer: Any) -> dict[str, Any] | None:
    """Return the group of parameters that holds a table; None without one."""
    return next((one for one in optimizer.param_groups for each in one["params"] if each.shape == table.shape), None)
