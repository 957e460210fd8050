"""Replay operators that compute each row several times, with each row once.

Rows of a product may be concatenated from copies: then each part is multiplied on its own, and the products are added.
"""

import math
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from lightning_perf.probes.sampled_steps.zeros import PRODUCTS
from lightning_perf.records import RepeatedRows

from .calls import REPEATABLE, Call, CallLog, TensorSpec
from .functions import Bound, Work, costliest, function_of, map_specs, work_for
from .read_rows import LAYERS

_KIND = attrgetter("site", "is_regular", "are_joined")
_PICKING = ("aten::index", "aten::index_select")


def repeated_rows(log: CallLog) -> RepeatedRows | None:
    """Return the record of such operators; None without any."""
    found = _costliest(log)
    if not found:
        return None
    call = max(found, key=lambda each: each.seconds)
    return RepeatedRows(
        n_copies=call.n_copies if call.n_copies > 1 else _n_joined(log, call),
        shape=call.out_shape,
        n_operators=sum(each.n for each in found),
        total_s=sum(each.seconds for each in found),
        site=log.irregular.get(call.index, call.site),
        is_regular=call.index not in log.irregular,
        are_joined=call.n_copies == 1,
    )


def in_both(found: RepeatedRows, again: RepeatedRows | None) -> RepeatedRows | None:
    """Return what two steps of a training have in common, with the smaller numbers; None if nothing."""
    if again is None or _KIND(again) != _KIND(found):
        return None
    if found.is_regular and not found.are_joined and again.n_copies != found.n_copies:
        return None
    return msgspec.structs.replace(
        found,
        n_copies=min(found.n_copies, again.n_copies),
        n_operators=min(found.n_operators, again.n_operators),
        total_s=min(found.total_s, again.total_s),
    )


def without_repeats(log: CallLog) -> list[Work]:
    """Return the operators of ``repeated_rows``, and the same ones on each row once, with copies of their results."""
    return [
        work
        for call in _costliest(log)
        for work in (_without_joining(log, call) if call.n_copies == 1 else work_for(call, partial(_once, call)))
    ]


def _costliest(log: CallLog) -> list[Call]:
    """Return the operators with the number of copies that takes the most time, or those whose rows are concatenated."""
    repeated = (call for call in log.calls if call.n_copies > 1 or _n_joined(log, call) > 1)
    return costliest(repeated, attrgetter("n_copies"), attrgetter("seconds"))


def _once(call: Call, bound: Bound) -> Bound:
    """Return a function on as many rows as differ, which copies its result as often as the rows occurred."""
    first = PRODUCTS.get(call.name, 0)
    rows = [spec for spec in call.args[first : first + REPEATABLE[call.name]] if isinstance(spec, TensorSpec)]

    def change(spec: TensorSpec) -> TensorSpec:
        if not any(spec is one for one in rows):
            return spec
        return spec._replace(shape=(spec.shape[0] // call.n_copies, *spec.shape[1:]), source=-1)

    function, args, kwargs = bound
    return partial(_copied, function, call.n_copies), map_specs(change, args), map_specs(change, kwargs)


def _copied(function: Any, n: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    out = function(*args, **kwargs)
    first: torch.Tensor = out if isinstance(out, torch.Tensor) else out[0]
    return first.repeat_interleave(n, dim=0)


class _Part(NamedTuple):
    """Some columns of the rows, with each row once; ``is_picked`` if an index, not broadcasting, makes the copies."""

    once: TensorSpec
    is_picked: bool


def _n_joined(log: CallLog, call: Call) -> int:
    """Return how many times fewer elements a product would have to multiply, rounded down; 1 for other operators."""
    parts = _parts(log, call)
    if not parts:
        return 1
    rows: TensorSpec = call.args[LAYERS[call.name]]
    return math.prod(rows.shape) // max(1, sum(math.prod(part.once.shape) for part in parts))


def _without_joining(log: CallLog, call: Call) -> list[Work]:
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
