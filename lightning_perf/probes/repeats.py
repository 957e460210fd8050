"""Find results of operators on a CPU whose rows are copies of each other."""

from typing import Any

import torch

from .plain import is_plain_tensor

MIN_ELEMENTS = 2**12
"""Smaller results cost next to nothing."""

_N_COLUMNS = 64
_TOLERANCE = 64
"""Rounding errors, in units of the dtype's smallest: equal rows of a product may be added up in another order."""


def n_copies_in(out: Any) -> int:
    """Return how often each row occurs in a result; 1 if not all rows occur equally often, or all are one row.

    Rows are what the last dimension holds; with four or more dimensions, what each item of the first one holds. Copies
    must be equally far apart, as ``repeat``, ``repeat_interleave`` and ``expand`` leave them.
    """
    if not is_plain_tensor(out) or out.device.type != "cpu" or out.layout is not torch.strided or out.dim() < 2:
        return 1
    if not out.dtype.is_floating_point or out.numel() < MIN_ELEMENTS:
        return 1
    value = out.detach()
    if value.dim() > 3:  # some elements of each item; the layout may be any
        rows = value[(slice(None), *(slice(None, None, -(-size // 4)) for size in value.shape[1:]))].flatten(1)
    else:
        rows = value[..., :: -(-value.shape[-1] // _N_COLUMNS)].flatten(0, -2)
    n, middle = rows.shape[0], rows.shape[0] // 2
    bound = _TOLERANCE * torch.finfo(rows.dtype).eps * rows[middle].abs().amax()
    places = _same(rows[:, :1], rows[middle, :1], bound).nonzero().flatten()
    places = places[_same(rows[places], rows[middle], bound)]
    copies = len(places)
    if copies < 2 or copies == n or n % copies:
        return 1
    apart = int(places[1] - places[0])
    if n % (copies * apart):
        return 1
    groups = rows.unflatten(0, (-1, copies, apart))
    return copies if bool(_same(groups, groups[:, :1], bound).all()) else 1


def _same(rows: torch.Tensor, others: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    return ((rows - others).abs() <= bound).all(-1)
