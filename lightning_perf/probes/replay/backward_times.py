"""Time the backward passes of a step, by the user's line that starts them and by the optimizers they are for."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import torch

from lightning_perf.probes.sampled_steps.code_lines import user_site
from lightning_perf.records import BackwardPasses

if TYPE_CHECKING:
    from .calls import Call


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
        self._nodes: dict[str, Counter[int]] = defaultdict(Counter)  # by their numbers: passes that went through each
        self._last_node = 0, 0

    def add(self, call: "Call | None", ns: int) -> None:
        """Add an operator of the current pass, and the forward operator that it belongs to, if that is known."""
        number = torch._C._current_graph_task_id()
        site = self._sites.get(number)
        if site is None:
            site = self._sites[number] = user_site()
        self._by_site[site][call] += ns
        node = torch._C._current_autograd_node()
        if accumulating_parameter(node) is None:  # all nodes that add to a gradient have one number
            self._nodes[site][node._sequence_nr()] += (number, node._sequence_nr()) != self._last_node
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
                shared=1 - len(self._nodes[site]) / max(1, self._nodes[site].total()),
            )
            for site, times in self._by_site.items()
            if times.total()
        )
