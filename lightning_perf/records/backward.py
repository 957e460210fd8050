"""Backward passes of one step, by the line that starts them."""

from .base import Record


class BackwardPasses(Record, frozen=True, kw_only=True):
    """The backward passes that one line of the user's starts in the sampled step, on a CPU.

    Attributes:
        site: That line, e.g. ``"gan.py:66"``; empty if unknown.
        n: Number of these passes.
        total_s: Seconds of their operators.
        only_s: By optimizer, the seconds of operators whose gradients reach parameters of this optimizer alone.
        shared: Part of their operators that an earlier one of these passes went through, too; None in older sessions.
    """

    site: str
    n: int
    total_s: float
    only_s: tuple[float, ...]
    shared: float | None = None
