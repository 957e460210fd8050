"""Properties of operators that decide whether their results can be known before."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.distributions import Distribution

from lightning_perf.probes.plain import n_elements

from .code_lines import torch_frames

COPIES = ("aten::clone", "aten::copy_", "aten::_to_copy")  # to be written to, or by autocast
_CHECKS = (Distribution.__init__.__code__, Distribution._validate_sample.__code__)
RUNNING = (3, 4)  # places of statistics, which batch norm writes but does not read when it trains
_IS_TRAINING = 5
_BATCH_NORMS = (
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm", "aten::_native_batch_norm_legit",
)  # fmt: skip
LIKE = {f"aten::{name}" for value in ("zeros", "ones", "full") for name in (f"{value}_like", f"new_{value}")}
PRODUCTS = ("aten::mm", "aten::addmm")
PER_ITEM = {
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "convolution", "native_batch_norm", "_native_batch_norm_legit_no_training",
        "native_layer_norm", "native_group_norm", "relu", "gelu", "silu", "tanh", "sigmoid", "exp", "log", "abs", "cos",
        "sin", "sqrt", "pow", "neg", "add", "sub", "mul", "div", "max_pool2d_with_indices", "avg_pool2d", "embedding",
        "_adaptive_avg_pool2d", "_fft_r2c", "constant_pad_nd", "reflection_pad1d", "upsample_bilinear2d",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
    )
}  # fmt: skip
"""Operators that treat the first dimension, or all of it by element, item by item."""

OVERWRITING = ("aten::fill_", "aten::zero_", "aten::copy_")


class Function(NamedTuple):
    """An operator: its name, the places and names of arguments that it writes to, and what may make it random.

    ``dropout`` is the place of the probability without which it is not random; None if it has none.
    """

    name: str
    written: tuple[tuple[int, str], ...]
    draws: bool
    dropout: int | None

    def is_random(self, args: Sequence[Any]) -> bool:
        """Return whether a call draws random numbers."""
        is_off = self.dropout is not None and (len(args) <= self.dropout or args[self.dropout] == 0.0)
        return self.draws and not is_off

    def is_zeroing(self, args: Sequence[Any]) -> bool:
        """Return whether a call multiplies by the number 0."""
        return self.name == "aten::mul" and any(type(value) in (int, float) and value == 0 for value in args)

    def trains(self, args: Sequence[Any]) -> bool:
        """Return whether a call is a batch normalization that writes its running statistics."""
        return self.name in _BATCH_NORMS and len(args) > _IS_TRAINING and bool(args[_IS_TRAINING])


@lru_cache(maxsize=1024)
def describe_function(func: Any) -> Function:
    """Return the properties of an ``OpOverload``."""
    arguments = func._schema.arguments
    written = [(place, argument.name) for place, argument in enumerate(arguments)
               if argument.alias_info is not None and argument.alias_info.is_write]  # fmt: skip
    dropout = next((place for place, argument in enumerate(arguments) if argument.name == "dropout_p"), None)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    return Function(str(func._schema.name), tuple(written), draws, dropout)


def is_argument_check() -> bool:
    """Return whether a distribution of torch checks its arguments above the caller."""
    return any(frame.f_code in _CHECKS for frame in torch_frames())


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is all that its storage holds."""
    return bool(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())


def n_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return n_elements(tensor) * tensor.element_size()
