"""Calls of the user's functions in one step, and what was called again within each."""

from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import NamedTuple

MIN_REPEATS = 10
"""Hits of one instruction within one call of a function that make it a loop."""


class Moment(NamedTuple):
    """A time, the tracing cost until then, and the number of operators called."""

    ns: int
    own_ns: int
    n_operators: int


@dataclass(slots=True, eq=False)
class Hits:
    """Hits of one instruction within one call of a function.

    ``first_chain`` and ``longest_chain`` are lengths of chains that end in its operators, as in ``DependencyChains``.
    """

    line: int
    operator: str
    phase: str
    first: Moment
    last: Moment
    n: int = 0
    n_operators: int = 0
    first_chain: int = 0
    longest_chain: int = 0
    child: object = None


@dataclass(slots=True, eq=False)
class FunctionCall:
    """One call of a user's function, with hits by instruction.

    ``n_unbound`` is the number of rows of a tensor that was unpacked here, ``is_iterated`` whether by iterating;
    ``is_repeating``: an instruction was hit again. ``frame`` is None after the call.
    """

    frame: FrameType | None
    code: CodeType
    hits: dict[int, Hits] = field(default_factory=dict)
    n_unbound: int = 0
    is_iterated: bool = False
    is_repeating: bool = False

    def has_loop(self) -> bool:
        """Return whether an instruction was executed so often that it is in a loop."""
        return self.n_unbound >= MIN_REPEATS or any(hits.n >= MIN_REPEATS for hits in self.hits.values())
