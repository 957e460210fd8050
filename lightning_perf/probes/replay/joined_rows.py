"""Replay products of rows that are concatenated from copies, with the product of each part on its own rows, once."""

import math
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from .calls import Call, CallLog, TensorSpec
from .functions import Work, function_of
from .read_rows import LAYERS

_PICKING = ("aten::index", "aten::index_select")


class _Part(NamedTuple):
    """Some columns of the rows, with each row once; ``is_picked`` if an index, not broadcasting, makes the copies."""

    once: TensorSpec
    is_picked: bool


def n_joined(log: CallLog, call: Call) -> int:
    """Return how many times fewer elements a product would have to multiply, rounded down; 1 for other operators."""
    parts = _parts(log, call)
    if not parts:
        return 1
    rows: TensorSpec = call.args[LAYERS[call.name]]
    return math.prod(rows.shape) // max(1, sum(math.prod(part.once.shape) for part in parts))


def without_joining(log: CallLog, call: Call) -> list[Work]:
    """Return a product with the copies and the concatenation before it, and the sum of the parts' products instead."""
    place, parts = LAYERS[call.name], _parts(log, call)
    if function_of(call) is None or not parts:
        return []
    rows, weight = call.args[place : place + 2]
    operands = *((call.args[0],) if place else ()), weight, *(part.once for part in parts)
    picks = _Picks(parts, rows.shape[0])
    as_is, treated = (partial(each, picks, bool(place)) for each in (_multiply_joined, _add_products))
    return [Work((call, log.calls[rows.source]), ((as_is, operands, {}),), ((treated, operands, {}),))]


def _parts(log: CallLog, call: Call) -> list[_Part]:
    """Return the parts of a product's rows; none unless `torch.cat` has just made them, for the user."""
    if call.name not in LAYERS or not call.is_users or call.kwargs:
        return []
    rows = call.args[LAYERS[call.name]]
    cat = log.calls[rows.source]
    tensors, dim = cat.named["tensors"], cat.named["dim"]
    is_whole = (math.prod(rows.shape), rows.shape[-1]) == (math.prod(cat.out_shape), cat.out_shape[-1])
    if not is_whole or rows.stride != rows.dense(rows.shape).stride or dim not in (-1, len(cat.out_shape) - 1):
        return []
    parts = [_part(log, spec) for spec in tensors if isinstance(spec, TensorSpec)]
    return parts if len(parts) == len(tensors) else []


def _part(log: CallLog, spec: TensorSpec) -> _Part:
    writer = log.calls[spec.source] if spec.source >= 0 else None
    if writer is not None and writer.name == "aten::clone" and isinstance(writer.args[0], TensorSpec):
        spec = writer.args[0] if writer.args[0].shape == spec.shape else spec
    source = writer.args[0] if writer is not None and writer.name in _PICKING else None
    if isinstance(source, TensorSpec) and len(source.shape) == 2 and source.shape[1:] == spec.shape[1:]:
        is_picked = source.shape[0] < spec.shape[0]
        return _Part(source if is_picked else spec, is_picked)
    once = tuple(1 if step == 0 else size for size, step in zip(spec.shape, spec.stride, strict=True))
    return _Part(spec.dense((*once[:-1], spec.shape[-1]))._replace(needs_grad=spec.needs_grad), False)


class _Picks:
    """Which row of each part the rows of a product are copies of; made at the first use, on the device of the part."""

    def __init__(self, parts: list[_Part], n_rows: int) -> None:
        self._parts, self._n_rows = parts, n_rows
        self._indices: dict[int, torch.Tensor] = {}

    def copied(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return a tensor for each part, with each row as often as it occurs; copies by broadcasting are not made."""
        return [self._copied(i, tensor) for i, tensor in enumerate(tensors)]

    def _copied(self, i: int, tensor: torch.Tensor) -> torch.Tensor:
        if not self._parts[i].is_picked:
            return tensor
        if i not in self._indices:
            self._indices[i] = torch.arange(self._n_rows, device=tensor.device) % len(tensor)
        return tensor.index_select(0, self._indices[i])


def _multiply_joined(picks: _Picks, has_bias: bool, *tensors: torch.Tensor) -> torch.Tensor:
    bias, (weight, *parts) = tensors[0] if has_bias else None, tensors[has_bias:]
    copies = picks.copied(parts)
    sizes = np.broadcast_shapes(*(each.shape[:-1] for each in copies))
    rows = torch.cat([each.expand(*sizes, -1) for each in copies], dim=-1)
    return torch.nn.functional.linear(rows, weight.t(), bias)


def _add_products(picks: _Picks, has_bias: bool, *tensors: torch.Tensor) -> torch.Tensor:
    weight, *parts = tensors[has_bias:]
    blocks = torch.split(weight, [part.shape[-1] for part in parts])
    products = picks.copied(part @ block for part, block in zip(parts, blocks, strict=True))
    return sum((*products[1:], *tensors[:has_bias]), start=products[0])
