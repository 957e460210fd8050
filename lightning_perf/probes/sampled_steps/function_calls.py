"""Calls of the user's functions in one step, the loops in them, and what one iteration hands to the next."""

from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from lightning_perf.probes.plain import storage_address

MIN_REPEATS = 10
"""Hits of one instruction within one call of a function that make it a loop."""


class Moment(NamedTuple):
    """A time, the tracing cost until then, and the number of operators called."""

    ns: int
    own_ns: int
    n_operators: int


class Hits:
    """Hits of one instruction within one call of a function.

    ``first_chain`` and ``longest_chain`` are lengths of chains that end in its operators, as in ``DependencyChains``.
    """

    __slots__ = (
        "child",
        "first",
        "first_chain",
        "last",
        "line",
        "longest_chain",
        "n",
        "n_operators",
        "operator",
        "phase",
    )

    def __init__(self, line: int, operator: str, now: Moment, phase: str) -> None:
        self.line = line
        self.operator = operator
        self.phase = phase
        self.n = 0
        self.n_operators = self.first_chain = self.longest_chain = 0
        self.first = self.last = now
        self.child: object = None


class FunctionCall:
    """One call of a user's function, with hits by instruction.

    ``n_unbound`` is the number of rows of a tensor that was unpacked here, ``is_iterated`` whether by iterating;
    ``is_repeating``: an instruction was hit again.
    """

    __slots__ = ("code", "frame", "hits", "is_iterated", "is_repeating", "n_unbound")

    def __init__(self, frame: FrameType) -> None:
        self.frame: FrameType | None = frame
        self.code: CodeType = frame.f_code
        self.hits: dict[int, Hits] = {}
        self.n_unbound = 0
        self.is_iterated = self.is_repeating = False

    def has_loop(self) -> bool:
        """Return whether an instruction was executed so often that it is in a loop."""
        return self.n_unbound >= MIN_REPEATS or any(hits.n >= MIN_REPEATS for hits in self.hits.values())


class DependencyChains:
    """Measures chains of operators of which each uses a result of the one before, within calls of the user's functions.

    In a recurrence, each iteration adds several operators to one chain; a sum over iterations adds one.
    """

    def __init__(self) -> None:
        # The length of the chain that ends in a storage, or in what was written in place at an address in it.
        self._lengths: dict[int, dict[int | None, dict[FunctionCall, int]]] = {}

    def follow(self, calls: Sequence[FunctionCall], hits: Sequence[Hits], func: Any, args: Any, out: Any) -> None:
        """Handle an operator below these calls: the user's functions and what it hits in each, innermost first."""
        is_in_place = getattr(getattr(func, "_schema", None), "is_mutable", False)  # none of a higher-order operator
        read, written = set(_places(args)), set(_places(args[:1] if is_in_place else (out,)))
        if not is_in_place and {storage for storage, _ in written} <= {storage for storage, _ in read}:  # a view
            return
        known = [self._lengths.get(storage, {}).get(place) for storage, address in read for place in (None, address)]
        lengths = {call: 1 + max((each.get(call, 0) for each in known if each), default=0) for call in calls}
        for storage, address in written:
            if is_in_place:
                self._lengths.setdefault(storage, {})[address] = lengths
            else:
                self._lengths[storage] = {None: lengths}
        for call, hit in zip(calls, hits, strict=True):
            hit.first_chain = hit.first_chain or lengths[call]
            hit.longest_chain = max(hit.longest_chain, lengths[call])


def _places(values: Any) -> Iterator[tuple[int, int]]:
    """Yield the addresses of each tensor's storage and of its first element; none for one without memory."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if storage := storage_address(value):
                yield storage, value.data_ptr()
        elif isinstance(value, (list, tuple)):
            yield from _places(value)
