"""Operators of a step, forward and backward, as pieces of work to compare."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from .calls import TensorSpec, flat
from .compare import Stopwatch
from .functions import Bound, Work, map_specs
from .treatments import Scope, Treated

MAX_ARENA_ELEMENTS = 2**24
"""64 MiB of float32. More would hardly change the rate of cache hits."""

COVERED = 0.95
"""Share of the changed operators' time that is replayed, largest operators first."""

MAX_OPERATORS = 64
MAX_SHARED_USES = 8
"""Calls with the same parameter replayed within one autocast context, which casts the parameter once."""

_DISTINCT = 2**18  # random numbers, which are repeated to fill an arena
_HALF_BYTES = 2
_ALIGNMENT = 16  # elements: 64 bytes of float32
_DENORMAL_BITS = 713_624  # 1e-39 as float32


class Arena:
    """A block of random numbers in 0…1 that tensors are views of.

    Successive tensors are at successive places, as in a step, so that they are in caches no more often than there; with
    ``starts_over`` those of each operator are at the same place, so that they are in caches as often as they can be. No
    tensor may have more than ``n_elements``. No other random stream is changed.
    """

    starts_over = False

    def __init__(self, device: torch.device, n_elements: int) -> None:
        generator = torch.Generator(device=device).manual_seed(0)
        self.n_elements = n_elements
        numbers = torch.rand(min(n_elements, _DISTINCT), generator=generator, dtype=torch.float32, device=device)
        numbers = numbers.repeat(-(-n_elements // max(1, len(numbers))))  # copying is faster than drawing
        self._blocks = {(torch.float32, 0.0): numbers}
        self._place = 0

    def begin_operator(self) -> None:
        """Choose the place for the tensors of the next operator."""
        if self.starts_over:
            self._place = 0

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """Return a tensor as specified: a leaf of the autograd graph that no other code has seen."""
        denormal = spec.denormal if spec.dtype is torch.float32 else 0.0
        block = self._blocks.get((spec.dtype, denormal))
        if block is None:
            numbers = self._blocks[torch.float32, 0.0]
            block = _cast(numbers, spec.dtype) if not denormal else _partly_denormal(numbers, denormal)
            self._blocks[spec.dtype, denormal] = block
        extent = _aligned(spec)
        if extent > len(block):  # the gradient of a result that is larger than the arguments
            block = block.repeat(-(-extent // len(block)))
        if self._place + extent > len(block):
            self._place = 0
        # .data makes a leaf: autocast caches the cast of a leaf, but not of a view.
        found = torch.as_strided(block, spec.shape, spec.stride, self._place).data
        self._place += extent
        return found.requires_grad_(spec.needs_grad)


def _cast(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return numbers > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return numbers.to(dtype)
    return torch.zeros_like(numbers, dtype=dtype)


def _partly_denormal(numbers: torch.Tensor, share: float) -> torch.Tensor:
    """Return numbers of which a share is denormal; written as bits, so that the CPU does not flush them to zero."""
    bits = torch.where(numbers < share, _DENORMAL_BITS, numbers.view(torch.int32))
    return bits.view(torch.float32)


def _aligned(spec: TensorSpec) -> int:
    """Return the number of elements of an arena that a tensor takes."""
    return -(-spec.extent // _ALIGNMENT) * _ALIGNMENT


class OperatorItem:
    """Operators with their backward passes, without and with a treatment."""

    def __init__(self, work: Work, arena: Arena, treated: Treated) -> None:
        self.work = work
        self._arena, self._treated = arena, treated
        self._n_uses = uses_in_a_run(work, treated)
        self.weight = work.n / self._n_uses
        self.treated_weight = self.weight * work.part
        # Operators that were timed forward only: their results are detached, or nothing needs their gradients.
        self._has_backward = any(call.has_backward or not call.ns for call in work.calls)
        self._gradient_denormal = max(call.gradient_denormal for call in work.calls)

    def run(self, is_treated: bool, watch: Stopwatch) -> list[tuple[Any, Any]]:
        """Run each function forward and backward; return the marks around each."""
        bounds = self.work.treated if is_treated else self.work.as_is
        around = self._treated.around_forward if is_treated else nullcontext
        return [pair for bound in bounds for pair in self._timed(bound, around, watch)]

    def _timed(self, bound: Bound, around: Scope, watch: Stopwatch) -> list[tuple[Any, Any]]:
        self._arena.begin_operator()
        function, args, kwargs = map_specs(self._arena.tensor, bound)
        with around():
            begin = watch.mark()
            outs = [function(*args, **kwargs) for _ in range(self._n_uses)]
            marks = [(begin, watch.mark())]
        leaves = [leaf for leaf in flat((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        for out in outs if leaves and self._has_backward else ():
            results = [value for value in flat(out) if isinstance(value, torch.Tensor) and value.requires_grad]
            gradients = [self._arena.tensor(self._gradient_of(value)) for value in results]
            begin = watch.mark()
            torch.autograd.grad(results, leaves, gradients, allow_unused=True)
            marks.append((begin, watch.mark()))
        return marks

    def _gradient_of(self, value: torch.Tensor) -> TensorSpec:
        return TensorSpec(tuple(value.shape), value.stride(), value.dtype, False, -1, self._gradient_denormal)


def choose_work(treated: Treated, is_timed: bool, most_s: float = math.inf, longest_s: float = math.inf) -> list[Work]:
    """Return the work to replay, largest first, up to ``COVERED`` of the time.

    Work that does not fit into ``most_s`` seconds per round is omitted. No run takes more than ``longest_s``: following
    each operator lengthens a run of many. Without timed calls, work is ranked by elements.
    """
    found = sorted(treated.works, key=lambda work: -_size(work, is_timed))
    total = sum(_size(work, is_timed) for work in found)
    covered = taken_s = 0.0
    kept: list[Work] = []
    for work in found:
        if covered >= COVERED * total or len(kept) == MAX_OPERATORS:
            break
        once_s = min(longest_s, work.seconds / work.n) * uses_in_a_run(work, treated) if is_timed else 0.0
        if taken_s + once_s > most_s:
            total -= _size(work, is_timed)
            continue
        taken_s += once_s
        covered += _size(work, is_timed)
        kept.append(work)
    return kept


def uses_in_a_run(work: Work, treated: Treated) -> int:
    """Return how often an operator is called within one timed run; the results exist at the same time."""
    return min(work.calls[0].n_uses, MAX_SHARED_USES) if treated.are_uses_shared else 1


def _size(work: Work, is_timed: bool) -> float:
    return work.seconds if is_timed else float(work.n_elements)


def elements_for(
    operators: Sequence[tuple[list[TensorSpec], int, int]], free_bytes: int, between_bytes: int = 0
) -> int:
    """Return the elements of an arena for operators: the tensors, elements of results and calls per step of each.

    As many as the tensors of all calls have, but at most ``MAX_ARENA_ELEMENTS`` and what fits. Each dtype needs a block
    of its own, and a treatment one in half precision; results, casts and gradients of the largest operator must fit
    beside them, and ``between_bytes``.

    Raises:
        MemoryError: The largest operator does not fit.
    """
    sizes = [sum(map(_aligned, specs)) for specs, _, _ in operators]
    in_all = sum(n * size for (_, _, n), size in zip(operators, sizes, strict=True))
    blocks = {(spec.dtype, spec.denormal) for specs, _, _ in operators for spec in specs} | {(torch.float32, 0.0)}
    item_bytes = [dtype.itemsize for dtype, _ in blocks]
    largest = max((size + n_out for size, (_, n_out, _) in zip(sizes, operators, strict=True)), default=0) + 1024
    bytes_each = sum(item_bytes) + _HALF_BYTES
    fits = (free_bytes - between_bytes - 2 * max(item_bytes) * largest) // bytes_each
    if fits < largest:
        raise MemoryError(f"{free_bytes / 2**20:.0f} MiB are free to replay in: not enough for the largest operator")
    return int(min(fits, max(largest, min(in_all, MAX_ARENA_ELEMENTS))))
