"""What can be told of one operator of torch from itself and its arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lightning_perf.interrupts import suppress

from .flop_formulas import Formula, formula_of, is_uncounted, name_of
from .plain import field, is_plain_tensor, is_readable_tensor
from .traffic import Traffic, traffic_of

_BASE = torch._C.TensorBase
_DENORMAL_SAMPLE = 1024
_TINY = np.float32(torch.finfo(torch.float32).tiny)
_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


class Operator(NamedTuple):
    """What is known of an operator before it runs."""

    name: str
    formula: Formula | None
    traffic: Traffic
    is_uncounted: bool
    is_composite: bool


def describe(func: Any) -> Operator:
    """What is known of an operator of torch."""
    packet = func._overloadpacket
    formula = formula_of(packet)
    traffic = traffic_of(func)
    is_composite = formula is None and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )
    heavy = formula is None and not traffic.is_view and is_uncounted(packet)
    return Operator(name_of(packet), formula, traffic, heavy, is_composite)


def positional(args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
    """The arguments in order, also where all of them were given by name."""
    return (*args, *kwargs.values()) if kwargs and not args else args


def dtype_of(args: Sequence[Any]) -> torch.dtype | None:
    """Of the largest tensor, one of floating-point numbers where there is one."""
    tensors = [a for a in args if is_readable_tensor(a)]
    for value in args:
        if not tensors and isinstance(value, (list, tuple)):
            tensors = [a for a in value if is_readable_tensor(a)]
    # A library's workspace, of bytes, may be larger than what it computes with.
    return field(max(tensors, key=lambda t: (_BASE.is_floating_point(t), _BASE.numel(t))), "dtype") if tensors else None


def rows_of(args: Sequence[Any]) -> int:
    """The product of the first tensor's dimensions but the last; 0 without one."""
    first = next((a for a in args if is_readable_tensor(a)), None)
    return 0 if first is None else math.prod(field(first, "shape")[:-1])


def denormal_fractions(args: Sequence[Any]) -> dict[int, float]:
    """Return the share of denormal numbers in each float32 tensor of an operator by its ``id``, from a sample of each.

    Where the processor takes denormal numbers as zero already, none is found.
    """
    shares = {}
    for tensor in args:
        if is_plain_tensor(tensor) and tensor.dtype is torch.float32 and tensor.device.type == "cpu":
            sample = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()[:1].reshape(-1)
            with suppress(RuntimeError):  # a tensor whose numbers lie nowhere, or elsewhere
                numbers = np.abs(sample[:: max(1, sample.numel() // _DENORMAL_SAMPLE)].numpy())
                if numbers.size:
                    shares[id(tensor)] = int(np.count_nonzero((numbers < _TINY) & (numbers > 0))) / numbers.size
    return shares


def precision_of(dtype: torch.dtype, args: Sequence[Any]) -> str:
    """The precision that products of these arguments are computed in: ``fp32``, ``tf32``, ``bf16`` …"""
    if dtype is torch.float32 and any(is_readable_tensor(a) and field(a, "is_cuda") for a in args):
        with suppress(Exception):  # newer versions refuse to tell where both of their interfaces were used
            return "tf32" if torch.get_float32_matmul_precision() != "highest" else "fp32"
    return _PRECISIONS.get(dtype, str(dtype).removeprefix("torch."))
