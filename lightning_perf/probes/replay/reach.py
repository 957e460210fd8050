"""Follow which parameters the gradients of a step's tensors reach."""

from collections.abc import Iterable

import torch

from lightning_perf.probes.plain import is_plain_tensor, storage_address

OTHERS = 1
"""Reach of a gradient for a tensor that is no parameter: the user may read it."""


class GradientReach:
    """What gradients reach, as bits: bit i + 1 for parameters of optimizer i, bit 0 for tensors that are no parameters.

    0 is the reach of a gradient that only parameters without an optimizer get. ``optimizers`` has the parameters of
    each, ``unowned`` those of none.
    """

    def __init__(self, optimizers: Iterable[Iterable[torch.Tensor]], unowned: Iterable[torch.Tensor]) -> None:
        self._of_parameters = dict.fromkeys(_addresses(unowned), 0)  # by storage
        self._of_results: dict[int, int] = {}
        self.n_optimizers = 0
        for parameters in optimizers:
            for address in _addresses(parameters):
                self._of_parameters[address] = self._of_parameters.get(address, 0) | 2 << self.n_optimizers
            self.n_optimizers += 1
        self.updated = {address for address, reach in self._of_parameters.items() if reach}
        """Storages of the parameters that optimizers update."""

    def of(self, tensor: torch.Tensor, address: int) -> int:
        """Return the reach of a tensor's gradient. A leaf is no result, though it may share the storage of one."""
        result = OTHERS if tensor.is_leaf else self._of_results.get(address, OTHERS)
        return self._of_parameters.get(address, result)

    def note(self, address: int, reach: int) -> None:
        """Remember the reach of an operator's result."""
        self._of_results[address] = reach


def _addresses(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {storage_address(one) for one in tensors if is_plain_tensor(one)}
