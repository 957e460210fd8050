"""Bytes that an operator reads and writes, as if nothing stayed in a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from .plain import field, is_readable_tensor

_WRITES_ONLY = frozenset({"aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_"})
"""Of these the tensor that is changed is not read."""

_RESERVES = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")
)
_FILLS = frozenset(
    f"aten::{like}{value}{suffix}"
    for value in ("zeros", "ones", "full", "rand", "randn")
    for like, suffix in (("", ""), ("", "_like"), ("new_", ""))
)
_PICKS = {"aten::embedding": 0, "aten::index_select": 0, "aten::gather": 0, "aten::index": 0}
"""Reads of its argument at this position no more than it returns."""


class Traffic(NamedTuple):
    """What an operator's schema says of its memory traffic.

    Attributes:
        is_view: It returns its argument, seen differently: nothing moves.
        n_bytes: From its arguments (positional and by name) and its result to the bytes moved.
    """

    is_view: bool
    n_bytes: Callable[[Sequence[Any], dict[str, Any], Any], int]


def traffic_of(operator: Any) -> Traffic:
    """Reads the schema of an ``OpOverload``."""
    schema = operator._schema
    name = str(schema.name)
    returns = schema.returns
    is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    if is_view or name in _RESERVES or name in ("aten::detach", "aten::_unsafe_view", "aten::lift_fresh"):
        return Traffic(True, lambda args, kwargs, out: 0)
    if name in _FILLS:
        return Traffic(False, lambda args, kwargs, out: _bytes_in(out))
    if name in _PICKS:
        place = _PICKS[name]
        return Traffic(False, lambda args, kwargs, out: _picked(place, args, out))
    written = {i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write}
    names = [argument.name for argument in schema.arguments]
    written_names = {names[i] for i in written}
    unread = {i for i in written if name in _WRITES_ONLY or schema.arguments[i].kwarg_only}
    is_fresh = [r.alias_info is None for r in returns]

    def n_bytes(args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
        total = 0
        for i, value in enumerate(args):
            size = _bytes_in(value)
            total += size * ((i not in unread) + (i in written))
        for key, value in kwargs.items():
            total += _bytes_in(value)  # read, or written where it is an ``out``
            if key in written_names and not schema.arguments[names.index(key)].kwarg_only:
                total += _bytes_in(value)
        results = out if isinstance(out, tuple) and len(returns) > 1 else (out,)
        return total + sum(_bytes_in(r) for r, fresh in zip(results, is_fresh, strict=False) if fresh)

    return Traffic(False, n_bytes)


def unique_bytes(tensor: torch.Tensor) -> int:
    """Of a tensor's elements, an expanded one counted once."""
    n = 1
    base = torch._C.TensorBase
    for size, stride in zip(field(tensor, "shape"), base.stride(tensor), strict=True):
        if stride or size == 0:
            n *= size
    return n * base.element_size(tensor)


def _picked(place: int, args: Sequence[Any], out: Any) -> int:
    others = (value for i, value in enumerate(args) if i != place)
    return 2 * _bytes_in(out) + sum(map(_bytes_in, others))


def _bytes_in(value: Any) -> int:
    if is_readable_tensor(value):
        return unique_bytes(value) if field(value, "layout") is torch.strided else 0
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes_in, _tensors(value)))
    return 0


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (value for value in values if is_readable_tensor(value))
