"""Operations, memory traffic and precision of one torch operator, from its schema and arguments.

A multiplication and an addition count as two operations. Operators other than matrix multiplication, convolution and
attention count none. Formulas missing or wrong in torch's own table are in ``_OWN``. Traffic ignores caches.
"""

import re
from collections.abc import Callable, Sequence
from math import floor, gcd, log2, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import flop_registry

from lightning_perf import interrupts
from lightning_perf.probes.plain import field, is_plain_tensor, is_readable_tensor

_BASE = torch._C.TensorBase
_DENORMAL_SAMPLE = 4096
_LEAST_DENORMAL = 4.0**-5  # fewer are chance in such a sample
_TINY = np.float32(torch.finfo(torch.float32).tiny)
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


_OVERWRITING = frozenset({"aten::copy_", "aten::zero_", "aten::fill_", "aten::normal_", "aten::uniform_"})
"""Operators that overwrite their first tensor without reading it."""

_ALLOCATING = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")
)
_FILLING = frozenset(
    f"aten::{like}{value}{suffix}"
    for value in ("zeros", "ones", "full", "rand", "randn")
    for like, suffix in (("", ""), ("", "_like"), ("new_", ""))
)
_SELECTING = frozenset({"aten::embedding", "aten::index_select", "aten::gather", "aten::index"})
"""Operators that read only as much of their first tensor as they return."""

EMBEDDING_BAG = "aten::_embedding_bag"
"""Reads a row of its first tensor for each index, and returns one for each bag."""


Traffic = Callable[[Sequence[Any], dict[str, Any], Any], int]
"""Function of an operator's positional arguments, keyword arguments and result that returns the bytes it moves."""


def traffic_of(operator: Any) -> Traffic | None:
    """Return the traffic of an ``OpOverload``, by its schema; None if it returns a view: nothing is moved."""
    schema = operator._schema
    name = str(schema.name)
    returns = schema.returns
    is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    if is_view or name in _ALLOCATING or name in ("aten::detach", "aten::_unsafe_view", "aten::lift_fresh"):
        return None
    if name in _FILLING:
        return lambda args, kwargs, out: _bytes_in(out)
    if name in _SELECTING:
        return lambda args, kwargs, out: 2 * _bytes_in(out) + sum(map(_bytes_in, args[1:]))
    if name == EMBEDDING_BAG:
        return lambda args, kwargs, out: _row_bytes(args) + sum(map(_bytes_in, (*args[1:], out)))
    written = {i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write}
    rewritten = {schema.arguments[i].name for i in written if not schema.arguments[i].kwarg_only}
    unread = {i for i in written if name in _OVERWRITING or schema.arguments[i].kwarg_only}
    is_fresh = [r.alias_info is None for r in returns]

    def n_bytes(args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
        total = 0
        for i, value in enumerate(args):
            total += _bytes_in(value) * ((i not in unread) + (i in written))
        for key, value in kwargs.items():
            total += _bytes_in(value) * (1 + (key in rewritten))  # an ``out`` is only written
        results = out if isinstance(out, tuple) and len(returns) > 1 else (out,)
        return total + sum(_bytes_in(r) for r, fresh in zip(results, is_fresh, strict=False) if fresh)

    return n_bytes


def unique_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements, each expanded element once."""
    sizes = zip(field(tensor, "shape"), _BASE.stride(tensor), strict=True)
    return int(prod(size for size, stride in sizes if stride or size == 0) * _BASE.element_size(tensor))


def _bytes_in(value: Any) -> int:
    if is_readable_tensor(value):
        return unique_bytes(value) if field(value, "layout") is torch.strided else 0
    if isinstance(value, (list, tuple)):
        return sum(_bytes_in(each) for each in value if is_readable_tensor(each))
    return 0


def _row_bytes(args: Sequence[Any]) -> int:
    """Return the bytes of the rows of a table that are looked up, each as often as its index occurs."""
    if not all(map(is_readable_tensor, args[:2])):
        return 0
    table, indices = args[:2]
    n_rows = field(table, "shape")[0]
    return unique_bytes(table) // n_rows * int(prod(field(indices, "shape"))) if n_rows else 0


_BACKENDS = ("CPU", "CUDA", "MPS", "XPU")


class Operator(NamedTuple):
    """Static properties of an operator; ``traffic`` is None if it returns a view.

    ``is_composite``: it has no kernel of its own, and runs others.
    """

    name: str
    formula: "Formula | None"
    traffic: Traffic | None
    is_uncounted: bool
    is_composite: bool


def describe(func: Any) -> Operator:
    """Return the static properties of an ``OpOverload``."""
    packet = func._overloadpacket
    formula = formula_of(packet)
    traffic = traffic_of(func)
    name = func.name()  # without a kernel of torch's, where a tensor subclass alone answers: aten::sym_size
    is_composite = (
        formula is None
        and torch._C._dispatch_has_kernel(name)
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        # With one, e.g. aten::silu_backward, the composite rounds otherwise.
        and not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, each) for each in _BACKENDS)
    )
    heavy = formula is None and traffic is not None and is_uncounted(packet)
    return Operator(name_of(packet), formula, traffic, heavy, is_composite)


def positional(args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
    """Return the arguments in order, even if all were given by name."""
    return (*args, *kwargs.values()) if kwargs and not args else args


def dtype_of(args: Sequence[Any]) -> torch.dtype | None:
    """Return the dtype of the largest tensor, of a floating-point one if there is one."""
    tensors = [a for a in args if is_readable_tensor(a)]
    for value in args:
        if not tensors and isinstance(value, (list, tuple)):
            tensors = [a for a in value if is_readable_tensor(a)]
    # A library's workspace, of bytes, may be larger than what it computes with.
    return field(max(tensors, key=lambda t: (_BASE.is_floating_point(t), _BASE.numel(t))), "dtype") if tensors else None


def rows_of(args: Sequence[Any]) -> int:
    """Return the product of the first tensor's dimensions except the last; 0 without a tensor."""
    first = next((a for a in args if is_readable_tensor(a)), None)
    return 0 if first is None else prod(field(first, "shape")[:-1])


def denormal_fractions(args: Sequence[Any]) -> dict[int, float]:
    """Return the share of denormal numbers in a sample of each float32 tensor, by the tensor's ``id``.

    It is 0 on a processor that flushes denormal numbers to zero.
    """
    shares = {}
    for tensor in args:
        if not is_plain_tensor(tensor) or tensor.layout is not torch.strided:
            continue
        if tensor.dtype is torch.float32 and tensor.device.type == "cpu":
            with interrupts.suppress(RuntimeError):  # a tensor without memory on the host
                # Not `tensor.numpy()`, which counts as the script's own reading during a sampled step.
                numbers = np.abs(_BASE.numpy(_sampled(tensor.detach())))
                if numbers.size:
                    shares[id(tensor)] = int(np.count_nonzero((numbers < _TINY) & (numbers > 0))) / numbers.size
    return shares


def rounded_fraction(share: float) -> float:
    """Return a share of denormal numbers rounded down to a power of 4; 0 if chance explains it."""
    return 4.0 ** floor(log2(share) / 2) if share >= _LEAST_DENORMAL else 0.0


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Return some elements from all of a tensor, without a copy of it; from its first item if its memory has gaps."""
    in_memory = tensor.permute(sorted(range(tensor.dim()), key=lambda each: -tensor.stride()[each]))
    elements = in_memory.reshape(-1) if in_memory.is_contiguous() else tensor[:1].reshape(-1)
    step = max(1, elements.numel() // _DENORMAL_SAMPLE)
    while step > 1 and gcd(step, elements.numel()) > 1:  # else it may meet the same column in each row
        step += 1
    return elements[::step]


def precision_of(dtype: torch.dtype, args: Sequence[Any]) -> str:
    """Return the precision of matrix multiplication with these arguments, e.g. ``"tf32"``."""
    if dtype is torch.float32 and any(is_readable_tensor(a) and field(a, "is_cuda") for a in args):
        with interrupts.suppress(Exception):  # newer versions raise if both of their interfaces were used
            return "tf32" if torch.get_float32_matmul_precision() != "highest" else "fp32"
    return _PRECISIONS.get(dtype, str(dtype).removeprefix("torch."))


Formula = Callable[[Sequence[Any], Any], int]
"""Function of an operator's positional arguments and result that returns its number of operations."""

# Expensive operators by name: those without a formula are reported as uncounted.
_HEAVY = re.compile(r"(^|_)(mm|bmm|matmul|attention|conv(olution)?\d?d?|rnn|lstm|gru|linear|cdist)(_|$)")
_LIGHT = frozenset({"aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell"})
_KNOWN_NAMESPACES = ("aten", "prim", "prims", "c10d", "_c10d_functional", "torchvision", "quantized", "profiler")


def formula_of(packet: Any) -> Formula | None:
    """Return the formula of an ``OpOverloadPacket``; None if it multiplies no matrices."""
    name = name_of(packet)
    own = _OWN.get(name)
    if own is not None:
        return own
    torchs = flop_registry.get(packet)
    if torchs is None:
        return None
    return lambda args, out: int(torchs(*args, out_val=out))


def is_uncounted(packet: Any) -> bool:
    """Return whether an operator without a formula probably computes a lot."""
    name = name_of(packet)
    namespace, _, operator = name.partition("::")
    if name in _LIGHT or name.endswith("_out"):
        return False
    return namespace not in _KNOWN_NAMESPACES or bool(_HEAVY.search(operator.removesuffix("_backward")))


def name_of(packet: Any) -> str:
    """Return the qualified name, e.g. ``"aten::mm"``."""
    return str(getattr(packet, "_qualified_op_name", packet))


def attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], is_backward: bool = False) -> int:
    """Return the operations of attention with shapes ``(…, heads, length, size)``, masked or not.

    Fused backward passes recompute the scores: five products for two of the forward pass.
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
    """Return the operations of a recurrent layer: each matrix multiplies each element of the sequence once."""
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
    # A mask follows the weights.
    weights = (a for a in args[3:18] if isinstance(a, torch.Tensor) and a.dim() == 2 and a.is_floating_point())
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
