"""Find the part of a backward pass that computes zeros."""

from typing import TYPE_CHECKING, Any

import torch

from .dense_tensors import dense_tensors, storage_number

if TYPE_CHECKING:
    from .known_result_calls import Call

_N_FIRST = 64
"""Elements that are read first: in most gradients one of them is not zero."""

_ADDITIONS = ("aten::add", "aten::add_")


class ZeroGradients:
    """Nodes of the autograd graph in whose backward pass all results are zeros, on a CPU.

    Attributes:
        weight: Nanoseconds of their operators.
        owners: The forward operators that the nodes belong to.
        source: The first of them that gets other gradients than zeros; None if there is none.
    """

    def __init__(self) -> None:
        self.weight = 0
        self.owners: set[Call] = set()
        self.source: Call | None = None
        self._zeros: set[int] = set()  # storages that hold nothing else
        # Of the node under way:
        self._node: tuple[int, int] | None = None
        self._owner: Call | None = None
        self._node_weight, self._gets_zeros = 0, False
        self._results: dict[int, bool] = {}  # by storage: whether it is zeros; without what the node reads again

    def add(self, func: Any, given: Any, out: Any, weight: int, node: tuple[int, int], owner: "Call | None") -> None:
        """Add an operator of a backward pass; the node is given by the numbers of the pass and of the node in it."""
        if node != self._node:
            self.node_ends()
            if self._node is None or node[0] != self._node[0]:
                self._zeros.clear()  # others may have got these storages since the last pass
            self._node, self._owner, self._node_weight, self._gets_zeros, self._results = node, owner, 0, False, {}
        read = set(map(storage_number, dense_tensors(given)))
        self._gets_zeros |= not self._zeros.isdisjoint(read - self._results.keys())
        self._node_weight += weight
        # Autograd adds the gradients of a tensor with several uses as soon as a node has computed its own.
        is_sum = func._schema.name in _ADDITIONS and not read <= self._results.keys()
        written = {storage_number(tensor): _is_zero(tensor) for tensor in dense_tensors(out)}
        for storage, is_zero in written.items():
            (self._zeros.add if is_zero else self._zeros.discard)(storage)
        if not (is_sum and any(self._results.get(storage) for storage in read)):
            self._results = {storage: is_zero for storage, is_zero in self._results.items() if storage not in read}
            self._results |= written

    def node_ends(self) -> None:
        """Count the last node, if its results are zeros."""
        if self._owner is not None and self._results and all(self._results.values()):
            self.weight += self._node_weight
            self.owners.add(self._owner)
            if self.source is None and not self._gets_zeros:
                self.source = self._owner
        self._owner = None


def _is_zero(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.device.type != "cpu" or not tensor.numel():
        return False
    values = tensor.detach()
    if values.is_contiguous() and bool(values.view(-1)[:_N_FIRST].any()):
        return False
    return not bool(values.any())
