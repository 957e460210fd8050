"""Find out whether the iterations of a loop depend on one another, by which results their operators read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lightning_perf.probes.plain import storage_address

from .function_calls import FunctionCall, Hits
from .known_result_functions import describe_function

_ACCUMULATING = {f"aten::{name}" for name in ("add", "add_", "sub", "sub_", "cat")}


class DependencyChains:
    """Measures chains of operators, each of which uses a result of the one before, within calls of user functions.

    In a recurrence, each iteration makes one chain longer. Sums and concatenations do not: a loop that only adds up is
    no recurrence.
    """

    def __init__(self) -> None:
        # The length of the chain that ends in a storage, or in what was written in place at an address in it.
        self._lengths: dict[int, dict[int | None, dict[FunctionCall, int]]] = {}

    def follow(
        self,
        calls: Sequence[FunctionCall],
        hits: Sequence[Hits],
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
    ) -> None:
        """Handle an operator below these calls: the user's functions and what it hits in each, innermost first."""
        if not hasattr(func, "_schema"):  # a higher-order operator
            return
        function = describe_function(func)
        in_place = [one for pair in function.written for one in pair]
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        written = set(_places([given[one] for one in in_place if one in given] if in_place else [out]))
        read = set(_places(given.values()))
        if not in_place and {storage for storage, _ in written} <= {storage for storage, _ in read}:  # a view
            return
        known = [self._lengths.get(storage, {}).get(place) for storage, address in read for place in (None, address)]
        added = 0 if function.name in _ACCUMULATING else 1
        lengths = {call: added + max((each.get(call, 0) for each in known if each), default=0) for call in calls}
        for storage, address in written:
            if in_place:
                self._lengths.setdefault(storage, {})[address] = lengths
            else:
                self._lengths[storage] = {None: lengths}
        for call, hit in zip(calls, hits, strict=True):
            hit.first_chain = hit.first_chain or lengths[call]
            hit.longest_chain = max(hit.longest_chain, lengths[call])


def _places(values: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Yield the addresses of each tensor's storage and of its first element; none for one without memory."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if storage := storage_address(value):
                yield storage, value.data_ptr()
        elif isinstance(value, (list, tuple)):
            yield from _places(value)
