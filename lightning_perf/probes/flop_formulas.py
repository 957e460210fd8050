"""Floating-point operations of torch's operators: those of torch's own table, and those it lacks or counts too high.

A multiplication and an addition count as two. Operators that multiply no matrices count none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

Formula = Callable[[Sequence[Any], Any], int]
"""From an operator's positional arguments and its result to its operations."""

# What these names do is arithmetic worth telling when it is not counted.
_HEAVY = re.compile(r"(^|_)(mm|bmm|matmul|attention|conv(olution)?\d?d?|rnn|lstm|gru|linear|cdist)(_|$)")
_LIGHT = frozenset({"aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell"})
_KNOWN_NAMESPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional", "torchvision", "quantized", "profiler")


def formula_of(packet: Any) -> Formula | None:
    """The formula of an operator (an ``OpOverloadPacket``); None where it multiplies no matrices."""
    name = name_of(packet)
    own = _OWN.get(name)
    if own is not None:
        return own
    torchs = flop_registry.get(packet)
    if torchs is None:
        return None
    return lambda args, out: int(torchs(*args, out_val=out))


def is_uncounted(packet: Any) -> bool:
    """Whether an operator without a formula is likely to do much arithmetic."""
    name = name_of(packet)
    namespace, _, operator = name.partition("::")
    if name in _LIGHT or name.endswith("_out"):
        return False
    return namespace not in _KNOWN_NAMESPACES or bool(_HEAVY.search(operator.removesuffix("_backward")))


def name_of(packet: Any) -> str:
    """``"aten::mm"``."""
    return str(getattr(packet, "_qualified_op_name", packet))


def attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], is_backward: bool = False) -> int:
    """Scaled dot-product attention of shapes ``(…, heads, length, size)``, masked or not.

    The fused backward passes compute the scores again: five products for two of the forward pass.
    """
    *outer, n_queries, size = query
    n_keys, value_size = key[-2], value[-1]
    once = 2 * prod(outer) * n_queries * n_keys
    return once * (3 * size + 2 * value_size) if is_backward else once * (size + value_size)


def _convolution_backward(args: Sequence[Any], out: Any) -> int:
    # torch's own formula takes the gradient of a grouped convolution's weight for that of an ungrouped one.
    gradient, inputs, weight = args[0], args[1], args[2]
    is_transposed, wanted = args[7], args[10]
    places = prod((inputs if is_transposed else gradient).shape[2:])
    return int(2 * inputs.shape[0] * places * weight.numel() * (int(wanted[0]) + int(wanted[1])))


def _attention(args: Sequence[Any], out: Any) -> int:
    return attention_flops(args[0].shape, args[1].shape, args[2].shape)


def _attention_backward(args: Sequence[Any], out: Any) -> int:
    return attention_flops(args[1].shape, args[2].shape, args[3].shape, is_backward=True)


def _recurrent(inputs: torch.Tensor, weights: Sequence[Any]) -> int:
    """Every matrix of a recurrent layer multiplies each element of the sequence once."""
    n_elements = inputs.numel() // max(1, inputs.shape[-1])
    return int(2 * n_elements * sum(weight.numel() for weight in weights if weight.dim() == 2))


def _mkldnn_rnn(args: Sequence[Any], out: Any) -> int:
    return _recurrent(args[0], args[1:3])


def _cudnn_rnn_backward(args: Sequence[Any], out: Any) -> int:
    wants_weights = bool(args[-1][3])
    return _recurrent(args[0], args[1]) * (1 + wants_weights)


def _encoder_layer(args: Sequence[Any], out: Any) -> int:
    source = args[0]
    *outer, length, size = source.shape
    weights = (a for a in args[3:] if isinstance(a, torch.Tensor) and a.dim() == 2 and a.is_floating_point())
    products = 2 * (source.numel() // size) * sum(w.numel() for w in weights)
    return int(products + 4 * prod(outer) * length**2 * size)


def _multi_head_attention(args: Sequence[Any], out: Any) -> int:
    query, key = args[0], args[1]
    *outer, n_queries, size = query.shape
    weights = args[5].numel() + args[7].numel()
    return int(2 * (query.numel() // size) * weights + 4 * prod(outer) * n_queries * key.shape[-2] * size)


_OWN: dict[str, Formula] = {
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "aten::_scaled_dot_product_attention_math_for_mps": _attention,
    "aten::mkldnn_rnn_layer": _mkldnn_rnn,
    "aten::mkldnn_rnn_layer_backward": lambda args, out: 2 * _mkldnn_rnn(args, out),
    "aten::_cudnn_rnn": lambda args, out: _recurrent(args[0], args[1]),
    "aten::_cudnn_rnn_backward": _cudnn_rnn_backward,
    "aten::miopen_rnn": lambda args, out: _recurrent(args[0], args[1]),
    "aten::_addmm_activation": lambda args, out: 2 * args[1].shape[0] * args[1].shape[1] * args[2].shape[1],
    "aten::mv": lambda args, out: 2 * args[0].numel(),
    "aten::addmv": lambda args, out: 2 * args[1].numel(),
    "aten::dot": lambda args, out: 2 * args[0].numel(),
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    "aten::_native_multi_head_attention": _multi_head_attention,
}
