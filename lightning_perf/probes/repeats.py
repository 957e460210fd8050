"""Find tensors on a CPU whose items, along the first dimension, are copies of each other."""

from typing import Any

import torch

from .plain import is_plain_tensor

MIN_ELEMENTS = 2**12
"""Operators on smaller tensors cost next to nothing."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_ROUNDING, _ROUNDING_16_BIT = 16, 2
"""How far equal items of a result may differ, in units of the dtype's precision at the largest element: an operator may
add up each of them in another order."""

_N_PARTS = 16  # in which they are compared, for the memory that this takes


def n_copies_in(value: Any, is_rounded: bool = False) -> int:
    """Return how often each item occurs; 1 if not all occur equally often, or if all are the same one.

    Copies must be equally far apart, as ``repeat``, ``repeat_interleave`` and ``expand`` leave them, and exact, unless
    ``is_rounded``: the tensor was computed from copies.
    """
    if not is_plain_tensor(value) or value.device.type != "cpu" or value.layout is not torch.strided or value.dim() < 2:
        return 1
    if value.dtype not in _DTYPES or value.numel() < MIN_ELEMENTS:
        return 1
    items = value.detach()
    n, middle = len(items), len(items) // 2
    some = (slice(None), *(slice(None, None, -(-size // 4)) for size in items.shape[1:]))
    few = items[some].flatten(1)
    bound = 0.0
    if is_rounded:
        units = _ROUNDING if few.dtype.itemsize > 2 else _ROUNDING_16_BIT
        bound = units * torch.finfo(few.dtype).eps * float(few[middle].abs().amax())
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


def _same(items: torch.Tensor, others: torch.Tensor, bound: float) -> torch.Tensor:
    return ((items - others).abs() <= bound).flatten(1).all(-1)
