"""Calls of the user's functions in one step, and what was called again within each."""

from types import CodeType, FrameType
from typing import NamedTuple

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
