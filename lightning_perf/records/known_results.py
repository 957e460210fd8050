"""Operators of one step whose results are known, or not needed, and its backward passes."""

from typing import Literal, TypeAlias

from .base import Record

KnownKind: TypeAlias = Literal[
    "unused", "constant", "twice", "frozen", "recomputed", "backward", "checks", "zeros", "zeroed", "logged"
]


class KnownResults(Record, frozen=True, kw_only=True):
    """Operators of a step that could be saved.

    Attributes:
        kind: ``"unused"``: nothing uses their results, though autograd recorded them; ``"constant"``: they depend only
            on numbers and on tensors of the model that do not change, so each step computes the same; ``"twice"``: the
            step computed the same before; ``"frozen"``: they depend on the batch, too, but on no parameter that is
            trained, so each epoch computes the same of an item that does not change; ``"recomputed"``: activation
            checkpointing calls them again in backward; ``"backward"``: several backward passes go through them and add
            to the same gradients, where one from the sum of the losses would do; ``"checks"``: distributions of torch
            check their arguments with them; ``"zeros"``: in backward they compute zeros only, since the derivative of a
            function such as ``sign`` is zero; ``"zeroed"``: their results are only multiplied by the number 0;
            ``"logged"``: their results are given to ``self.log``, and used for nothing else.
        forward_part: Their part of the time of the step's operators in forward; on a device, of their FLOPs.
        backward_part: The same of their backward pass; if ``"backward"``, of all passes but one.
        n_passes: Backward passes through them; if ``"twice"``, those that compute the same. 0 for other kinds.
        total_s: Seconds of both in the step; 0 if operators were not timed.
        kept_bytes: Bytes of their results for one batch: if ``"frozen"``, of those that others use; if
            ``"recomputed"``, of all; else 0.
        is_per_item: Whether, if ``"frozen"``, they depend on each item by itself, as the dataset returns it, and their
            results are no larger than the batch.
        site: The user's line with most of them, e.g. ``"model.py:31"``, or, if ``"zeros"``, the line of that
            function; empty if unknown.
        first_site: The line that computed the same before; empty unless ``"twice"``, and if it is the same line.
        inner_site: The line below both that most of them are in; empty unless ``"twice"``, and if there is none.
    """

    kind: KnownKind
    n_operators: int
    forward_part: float
    backward_part: float = 0.0
    n_passes: int = 0
    total_s: float = 0.0
    kept_bytes: int = 0
    is_per_item: bool = False
    site: str = ""
    first_site: str = ""
    inner_site: str = ""


class BackwardPasses(Record, frozen=True, kw_only=True):
    """The backward passes that one line of the user's starts in the sampled step, on a CPU.

    Attributes:
        site: That line, e.g. ``"gan.py:66"``; empty if unknown.
        n: Number of these passes.
        total_s: Seconds of their operators.
        only_s: By optimizer, the seconds of operators whose gradients reach parameters of this optimizer alone.
        shared: Part of their operators that an earlier one of these passes went through, too, without derivatives of
            derivatives; None in older sessions.
    """

    site: str
    n: int
    total_s: float
    only_s: tuple[float, ...]
    shared: float | None = None
