"""Find tensors on a CPU whose items, along the first dimension, are copies of each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lightning_perf.probes.plain import is_plain_tensor

MIN_ELEMENTS = 2**12
"""Operators on smaller tensors cost next to nothing."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_ROUNDING, _ROUNDING_16_BIT = 16, 2
"""How far equal items of a result may differ, in units of the dtype's precision at the largest element: an operator may
add up each of them in another order."""

_LEAST_INDICES, _MOST_INDICES, _MOST_ITEMS = 2**9, 2**20, 2**14

_N_PARTS = 16  # in which they are compared, for the memory that this takes


def n_copies_in(value: Any, is_rounded: bool = False) -> int:
    """Return how often each item occurs; 1 if not all occur equally often, or if all are the same one.

    Copies must be equally far apart, as ``repeat``, ``repeat_interleave`` and ``expand`` leave them, and exact, unless
    ``is_rounded``: the tensor was computed from copies.
    """
    if not _can_compare(value):
        return 1
    items = value.detach()
    n, middle = len(items), len(items) // 2
    some = (slice(None), *(slice(None, None, -(-size // 4)) for size in items.shape[1:]))
    few = items[some].flatten(1)
    bound = _bound(few, is_rounded)
    places = _same(few[:, :1], few[middle, :1], bound).nonzero().flatten()
    places = places[_same(few[places], few[middle], bound)]
    copies = len(places)
    if copies < 2 or copies == n:
        return 1
    apart = int(places[1] - places[0])
    if n % (copies * apart):
        return 1
    groups = items.unflatten(0, (-1, copies, apart))
    parts = groups.split(-(-len(groups) // _N_PARTS))
    return copies if all(bool(_same(part, part[:, :1], bound).all()) for part in parts) else 1


class RepeatedLookups:
    """Items of several indices that a step looks up more than once, anywhere in a batch: titles of articles, say."""

    def __init__(self) -> None:
        self._known: dict[int, Lookup] = {}  # by number of items

    def see(self, indices: Any, site_of: Callable[[], str]) -> None:
        """Remember which rows of an embedding's indices are equal."""
        if not is_plain_tensor(indices) or indices.device.type != "cpu" or indices.dim() < 2:
            return
        n = len(indices)
        if not 2 <= n <= _MOST_ITEMS or not _LEAST_INDICES <= indices.numel() <= _MOST_INDICES:
            return
        keys = indices.detach().flatten(1).to(torch.int64)
        # A hash of each item, since `unique` of rows takes microseconds for each of them.
        generator = torch.Generator().manual_seed(0)
        factors = torch.randint(-(2**63), 2**63 - 1, (keys.shape[1],), generator=generator, device="cpu")
        distinct, kind = torch.unique((keys * factors).sum(1), return_inverse=True)
        if 1 < len(distinct) <= n // 2:
            firsts = torch.full((len(distinct),), n).scatter_reduce_(0, kind, torch.arange(n), "amin")
            self._known[n] = Lookup(n // len(distinct), site_of(), firsts[kind])

    def lookup_of(self, value: Any, is_rounded: bool) -> "Lookup | None":
        """Return the lookup with equal items where a tensor has them; None without one."""
        if not self._known or not _can_compare(value):
            return None
        for n, found in self._known.items():
            if len(value) % n == 0 and found.is_in(value.detach().unflatten(0, (n, -1)), is_rounded):
                return found
        return None


@dataclass(eq=False)
class Lookup:
    """Repeated items of one lookup; each occurs ``n_copies`` times on average, rounded down.

    ``site`` is the user's line that calls the embedding, ``firsts`` for each item the place of the first equal one.
    """

    n_copies: int
    site: str
    firsts: torch.Tensor

    def is_in(self, items: torch.Tensor, is_rounded: bool) -> bool:
        """Return whether items are equal where those looked up are."""
        bound = _bound(items, is_rounded)
        parts = torch.arange(len(items)).chunk(_N_PARTS)
        return all(bool(_same(items[part], items[self.firsts[part]], bound).all()) for part in parts)


def _can_compare(value: Any) -> bool:
    if not is_plain_tensor(value) or value.device.type != "cpu" or value.layout is not torch.strided or value.dim() < 2:
        return False
    return value.dtype in _DTYPES and value.numel() >= MIN_ELEMENTS


def _bound(items: torch.Tensor, is_rounded: bool) -> float:
    """Return by how much equal items may differ."""
    if not is_rounded:
        return 0.0
    units = _ROUNDING if items.dtype.itemsize > 2 else _ROUNDING_16_BIT
    return units * torch.finfo(items.dtype).eps * float(items[len(items) // 2].abs().amax())


def _same(items: torch.Tensor, others: torch.Tensor, bound: float) -> torch.Tensor:
    return ((items - others).abs() <= bound).flatten(1).all(-1)
