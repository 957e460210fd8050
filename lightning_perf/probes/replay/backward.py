"""Time the backward passes of a step by line and by optimizer, and follow which parameters their gradients reach."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from lightning_perf.probes.plain import is_plain_tensor, storage_address
from lightning_perf.probes.sampled_steps.code_lines import user_site
from lightning_perf.records import BackwardPasses

if TYPE_CHECKING:
    from .calls import Call

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


def accumulating_parameter(node: Any) -> torch.Tensor | None:
    """Return the parameter to whose gradient a node of autograd adds; None for all other nodes.

    A node of a function of the user's has whatever attributes they set.
    """
    parameter: torch.Tensor | None = getattr(node, "variable", None)
    return None if isinstance(node, torch._C._FunctionBase) else parameter


class BackwardTimes:
    """Nanoseconds of the operators in the backward passes of a step."""

    def __init__(self) -> None:
        self._sites: dict[int, str] = {}  # by autograd's number of the pass
        self._by_site: dict[str, Counter[Call | None]] = defaultdict(Counter)
        self._nodes: dict[int, Counter[int]] = defaultdict(Counter)  # by pass: how often it went through each node
        self._made: set[int] = set()  # nodes that passes have made, by their numbers
        self._last_node = 0, 0

    def add(self, call: "Call | None", ns: int, made: int | None = None) -> None:
        """Add an operator of the current pass.

        Args:
            call: The forward operator that it belongs to; None if that is unknown.
            ns: Nanoseconds that it took.
            made: Number of the node of autograd that it has made; None if it has made none.
        """
        if made is not None:
            self._made.add(made)
        number = torch._C._current_graph_task_id()
        site = self._sites.get(number)
        if site is None:
            site = self._sites[number] = user_site()
        self._by_site[site][call] += ns
        node = torch._C._current_autograd_node()
        if accumulating_parameter(node) is None:  # all nodes that add to a gradient have one number
            self._nodes[number][node._sequence_nr()] += (number, node._sequence_nr()) != self._last_node
            self._last_node = number, node._sequence_nr()

    def records(self, n_optimizers: int) -> tuple[BackwardPasses, ...]:
        """Return the record of each line; empty if operators were not timed."""
        return tuple(
            BackwardPasses(
                site=site,
                n=sum(each == site for each in self._sites.values()),
                total_s=times.total() / 1e9,
                only_s=tuple(
                    sum(ns for call, ns in times.items() if call is not None and call.reach == 2 << i) / 1e9
                    for i in range(n_optimizers)
                ),
                shared=self._shared([number for number, each in self._sites.items() if each == site]),
            )
            for site, times in self._by_site.items()
            if times.total()
        )

    def _shared(self, passes: list[int]) -> float:
        """Return the part of the passes' nodes that an earlier one went through as well.

        Derivatives of derivatives do not count: they need another pass's result, and for two or three inputs, one pass
        over all of them takes as long as one for each.
        """
        n_shared, before = 0, set[int]()
        for number in passes:
            nodes = self._nodes[number]
            if self._made.isdisjoint(nodes):
                n_shared += nodes.total() - len(nodes.keys() - before)
            before.update(nodes)
        return n_shared / max(1, sum(self._nodes[number].total() for number in passes))
