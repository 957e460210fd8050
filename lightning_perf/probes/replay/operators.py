"""Operators of a step, forward and backward, as pieces of work to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .arena import Arena, needed_elements
from .calls import Call, CallLog, TensorSpec, flat
from .functions import Bound, function_of
from .treatments import Treated, respecified
from .watch import Stopwatch

CACHED = 2**24
"""Elements beyond which more of them would not change how often one is in a cache: 64 MiB of float32."""

COVERED = 0.95
"""Of the time of the operators that a treatment concerns, the part that is replayed, largest first."""

MAX_OPERATORS = 64
MAX_SHARED_USES = 8
"""Calls with the same parameter that are replayed within one autocast context, which casts the parameter once."""


class OperatorItem:
    """One distinct operator with its backward pass.

    Args:
        call: The operator.
        bound: Its function and arguments.
        arena: Makes its tensors.
        treated: How the treatment runs it.
        are_uses_shared: Whether calls with the same parameter are replayed together.

    Attributes:
        once_s: Seconds of as much work in the sampled step as one run does.
    """

    def __init__(self, call: Call, bound: Bound, arena: Arena, treated: Treated, are_uses_shared: bool) -> None:
        self.call = call
        self._function, args, kwargs = bound
        self._sides = {side: (respecified(r, args), respecified(r, tuple(kwargs.values())))
                       for side, r in ((False, lambda spec: spec), (True, treated.respec))}  # fmt: skip
        self._names = tuple(kwargs)
        self._arena, self._treated = arena, treated
        self._n_uses = min(call.n_uses, MAX_SHARED_USES) if are_uses_shared else 1
        self.weight = call.n / self._n_uses
        self.once_s = call.seconds / self.weight

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Run forward and backward once; return the marks around each."""
        args, values = (self._arena.filled(part) for part in self._sides[is_treated])
        kwargs = dict(zip(self._names, values, strict=True))
        if is_treated:
            with self._treated.around_forward():
                begin = watch.mark()
                outs = [self._function(*args, **kwargs) for _ in range(self._n_uses)]
                marks = [(begin, watch.mark())]
        else:
            begin = watch.mark()
            outs = [self._function(*args, **kwargs) for _ in range(self._n_uses)]
            marks = [(begin, watch.mark())]
        leaves = [leaf for leaf in flat((args, values)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        for out in outs if leaves else ():
            results = [value for value in flat(out) if isinstance(value, torch.Tensor) and value.requires_grad]
            gradients = [self._arena.tensor(_spec_of(value)) for value in results]
            begin = watch.mark()
            torch.autograd.grad(results, leaves, gradients, allow_unused=True)
            marks.append((begin, watch.mark()))
        return marks


def _spec_of(value: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(value.shape), value.stride(), value.dtype, False, -1)


def chosen(log: CallLog, treated: Treated, is_timed: bool) -> list[tuple[Call, Bound]]:
    """Return the calls to replay, largest first: those that make up most of the time that the treatment concerns.

    Args:
        log: The calls of the step.
        treated: The treatment.
        is_timed: Whether calls were timed; else they are ranked by the elements that they touch.
    """
    found = [(call, bound) for call in log.calls if treated.concerns(call) and (bound := function_of(call))]
    found.sort(key=lambda pair: -_size(pair[0], is_timed))
    total = sum(_size(call, is_timed) for call, _ in found)
    covered = 0.0
    for place, (call, _) in enumerate(found):
        if covered >= COVERED * total or place == MAX_OPERATORS:
            return found[:place]
        covered += _size(call, is_timed)
    return found


def _size(call: Call, is_timed: bool) -> float:
    return call.seconds if is_timed else float(call.n_elements)


def arena_elements(calls: Sequence[Call], free_bytes: int) -> int:
    """Return the size of an arena: all tensors side by side, or as much of that as fits and as caches hold.

    The block is counted in up to three dtypes, and as much again for results and gradients of the largest operator.

    Raises:
        MemoryError: The largest operator does not fit.
    """
    sizes = [needed_elements(call.specs) for call in calls]
    largest = 2 * max(sizes, default=0) + 1024
    bytes_each = 4 + 2 + 8
    fits = (free_bytes - 8 * 2 * largest) // bytes_each
    if fits < largest:
        raise MemoryError(f"{free_bytes / 2**20:.0f} MiB are free to replay in: not enough for the largest operator")
    return int(min(fits, max(largest, min(sum(sizes), CACHED))))
