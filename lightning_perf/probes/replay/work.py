"""What a comparison runs: operators as they are, and what a treatment runs instead of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .calls import Call, TensorSpec
from .functions import Bound, function_of

Respec = Callable[[TensorSpec], TensorSpec]


class Work(NamedTuple):
    """Operators that a treatment changes together: one of them, or a sequence that it replaces.

    Attributes:
        calls: The operators.
        as_is: Their functions with arguments.
        treated: The functions that do the same with the treatment.
    """

    calls: tuple[Call, ...]
    as_is: tuple[Bound, ...]
    treated: tuple[Bound, ...]

    @property
    def n(self) -> int:
        """Times that a step does it."""
        return self.calls[0].n

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward in the step, as often as the first of the operators ran."""
        return self.n * sum(call.seconds / call.n for call in self.calls)

    @property
    def n_elements(self) -> int:
        """Elements of all tensors in all calls: ranks work where operators are not timed."""
        return sum(call.n_elements for call in self.calls)


def works_of(call: Call, treat: Callable[[Bound], Bound | None]) -> tuple[Work, ...]:
    """Return the work of a single operator, its treated side made by ``treat``; empty where it cannot be replayed."""
    bound = function_of(call)
    treated = treat(bound) if bound is not None else None
    return (Work((call,), (bound,), (treated,)),) if bound is not None and treated is not None else ()


def with_specs(respec: Respec) -> Callable[[Bound], Bound]:
    """Return a function that replaces each tensor among the arguments of a bound function."""

    def treat(bound: Bound) -> Bound:
        function, args, kwargs = bound
        return function, mapped(respec, args), {name: mapped(respec, value) for name, value in kwargs.items()}

    return treat


def mapped(respec: Respec, value: Any) -> Any:
    """Return nested arguments with each tensor as ``respec`` makes it."""
    if isinstance(value, TensorSpec):
        return respec(value)
    if isinstance(value, (list, tuple)):
        return tuple(mapped(respec, each) for each in value)
    return value
