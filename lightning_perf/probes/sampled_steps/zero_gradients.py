"""Find the part of a backward pass that computes zeros behind a function whose derivative is zero, such as ``sign``."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from .dense_tensors import dense_tensors, storage_number

if TYPE_CHECKING:
    from .known_result_calls import Call

_FUNCTIONS = ("Sign", "Sgn", "Round", "Floor", "Ceil", "Trunc", "Bernoulli")
_NODES = tuple(f"{name}Backward" for name in _FUNCTIONS)
"""Autograd's nodes of functions whose derivative is zero wherever it exists. Other gradients may be zeros for a while
only: a layer that starts with zeros, a weight of a loss that grows."""

_ADDITIONS = ("aten::add", "aten::add_")


class ZeroGradients:
    """Nodes of the autograd graph that get zeros from such a function, and whose results are all zeros, on a CPU.

    Attributes:
        owners: The forward operators that they belong to, with those of the functions.
        weights: Nanoseconds of their operators, by the forward operator of the function.
    """

    def __init__(self) -> None:
        self.owners: set[Call] = set()
        self.weights: Counter[Call] = Counter()
        self._zeros: dict[int, Call] = {}  # by storage that holds nothing else: the function that the zeros are from
        # Of the node under way:
        self._node: tuple[int, int] | None = None
        self._owner: Call | None = None
        self._source: Call | None = None
        self._weight = 0
        self._results: dict[int, bool] = {}  # by storage: whether it is zeros; without what the node reads again

    def add(
        self, func: Any, given: Any, out: Any, weight: int, node: tuple[int, int], name: str, owner: "Call | None"
    ) -> None:
        """Add an operator of a backward pass.

        The node is given by the numbers of the pass and of the node in it, and by autograd's name for it.
        """
        if node != self._node:
            if self._node is None or node[0] != self._node[0]:
                self._zeros.clear()  # others may have got these storages since the last pass
            self.node_ends()
            is_source = owner is not None and name.startswith(_NODES)
            self._node, self._owner, self._source = node, owner, owner if is_source else None
            self._weight, self._results = 0, {}
        if self._source is None and not self._zeros:
            return
        read = set(map(storage_number, dense_tensors(given)))
        self._source = self._source or next((self._zeros[one] for one in read if one in self._zeros), None)
        self._weight += weight
        # Autograd adds the gradients of a tensor with several uses as soon as a node has computed its own.
        is_sum = func._schema.name in _ADDITIONS and not read <= self._results.keys()
        written = {}
        for tensor in dense_tensors(out):
            storage = storage_number(tensor)
            written[storage] = self._source is not None and _is_zero(tensor)
            self._zeros.pop(storage, None)
            if self._source is not None and written[storage]:
                self._zeros[storage] = self._source
        if not (is_sum and any(self._results.get(storage) for storage in read)):
            self._results = {storage: is_zero for storage, is_zero in self._results.items() if storage not in read}
            self._results |= written

    def node_ends(self) -> None:
        """Count the last node, if its results are zeros."""
        if self._owner is not None and self._source is not None and self._results and all(self._results.values()):
            self.weights[self._source] += self._weight
            self.owners.add(self._owner)


def _is_zero(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.device.type == "cpu" and not bool(tensor.detach().any())
