"""Calls of the user's functions in one step, the loops in them, and what one iteration hands to the next."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from lightning_perf.probes.plain import storage_address

_ACCUMULATING = {f"aten::{name}" for name in ("add", "add_", "sub", "sub_", "cat")}
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
        name, in_place = _name_and_written(func)
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        written = set(_places([given[one] for one in in_place if one in given] if in_place else [out]))
        read = set(_places(given.values()))
        if not in_place and {storage for storage, _ in written} <= {storage for storage, _ in read}:  # a view
            return
        known = [self._lengths.get(storage, {}).get(place) for storage, address in read for place in (None, address)]
        added = 0 if name in _ACCUMULATING else 1
        lengths = {call: added + max((each.get(call, 0) for each in known if each), default=0) for call in calls}
        for storage, address in written:
            if in_place:
                self._lengths.setdefault(storage, {})[address] = lengths
            else:
                self._lengths[storage] = {None: lengths}
        for call, hit in zip(calls, hits, strict=True):
            hit.first_chain = hit.first_chain or lengths[call]
            hit.longest_chain = max(hit.longest_chain, lengths[call])


@lru_cache(maxsize=1024)
def _name_and_written(func: Any) -> tuple[str, tuple[int | str, ...]]:
    """Return an operator's name, and places and names of the arguments that it writes to."""
    schema = getattr(func, "_schema", None)  # none of a higher-order operator
    if schema is None:
        return "", ()
    pairs = [(place, one.name) for place, one in enumerate(schema.arguments)
             if one.alias_info is not None and one.alias_info.is_write]  # fmt: skip
    return str(schema.name), tuple(one for pair in pairs for one in pair)


def _places(values: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Yield the addresses of each tensor's storage and of its first element; none for one without memory."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if storage := storage_address(value):
                yield storage, value.data_ptr()
        elif isinstance(value, (list, tuple)):
            yield from _places(value)
