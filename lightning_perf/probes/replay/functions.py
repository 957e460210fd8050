"""Return the function that a training calls for an operator seen below autograd and autocast.

Autocast decides by the functions above: on a CPU it knows ``conv2d``, not ``aten::convolution``; ``softmax``, not
``aten::_softmax``; ``scaled_dot_product_attention``, not the kernel chosen for it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch

from lightning_perf.records import CheaperKind

from .calls import OPAQUE, Call, CallLog, TensorSpec, flat

T = TypeVar("T")

Bound = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function with its positional and its keyword arguments."""

ATTENTION = tuple(
    f"aten::_scaled_dot_product_{kind}"
    for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
)
"""Kernels of ``torch.nn.functional.scaled_dot_product_attention``."""

_RECURRENT = ("aten::mkldnn_rnn_layer", "aten::_cudnn_rnn", "aten::miopen_rnn")
_WRITES_STATISTICS = ("aten::_native_batch_norm_legit",)


def function_of(call: Call) -> Bound | None:
    """Return the function for a call with its arguments, tensors still as ``TensorSpec``.

    Return None if a call cannot be replayed: it belongs to the user, writes to its arguments, returns no tensor, or its
    time depends on values of integer tensors or of objects that the log does not hold.
    """
    schema = call.func._schema
    dtypes = [spec.dtype for spec in call.specs]
    has_integers = any(not (d.is_floating_point or d.is_complex or d is torch.bool) for d in dtypes)
    if (
        not schema.name.startswith("aten::")
        or not call.out_dtypes  # an assertion, which fails on random numbers, or a number read from a tensor
        or any(leaf is OPAQUE for leaf in flat((call.args, call.kwargs)))
        or not dtypes
        or (has_integers and schema.name not in _RECURRENT)
    ):
        return None
    restore = _RESTORED.get(schema.name)
    if restore is not None:
        return restore(call.named, call)
    if not schema.is_mutable or schema.name in _WRITES_STATISTICS:
        return call.func, call.args, call.kwargs
    # For relu_ and similar ones: the same operator on a new tensor, so that it can be repeated.
    name = schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    pure = getattr(packet, call.func._overloadname, None)
    return None if pure is None or pure._schema.is_mutable else (pure, call.args, call.kwargs)


def is_known_to_autocast(function: Any, device: str) -> bool:
    """Return whether autocast has a rule of its own for a function."""
    if not isinstance(function, torch._ops.OpOverload):
        return True
    key = f"Autocast{device.upper()}"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(function._name, key))


def _convolution(given: dict[str, Any], call: Call) -> Bound | None:
    dims = len(given["weight"].shape) - 2
    if not 1 <= dims <= 3:
        return None
    first = (given["input"], given["weight"], given["bias"], given["stride"], given["padding"])
    if given["transposed"]:
        function = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[dims - 1]
        return function, (*first, given["output_padding"], given["groups"], given["dilation"]), {}
    return (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1], (*first, given["dilation"], given["groups"]), {}


def _softmax(given: dict[str, Any], call: Call) -> Bound:
    if given["half_to_float"]:
        return call.func, call.args, call.kwargs
    function: Callable[..., Any] = torch.softmax if call.name == "aten::_softmax" else torch.log_softmax
    return function, (given["self"], given["dim"]), {}


def _group_norm(given: dict[str, Any], call: Call) -> Bound:
    order = (given["input"], given["group"], given["weight"], given["bias"], given["eps"])
    return torch.nn.functional.group_norm, order, {}


def _attention(given: dict[str, Any], call: Call) -> Bound:
    named = {
        "attn_mask": given.get("attn_mask", given.get("attn_bias")),
        "dropout_p": given["dropout_p"],
        "is_causal": given["is_causal"],
        "scale": given["scale"],
    }
    if given["query"].shape[1] != given["key"].shape[1]:
        named["enable_gqa"] = True
    function = torch.nn.functional.scaled_dot_product_attention
    return function, (given["query"], given["key"], given["value"]), named


def _copy(given: dict[str, Any], call: Call) -> Bound:
    return _copied, (given["self"], given["src"]), {}


def _copied(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Write to a new tensor: ``aten::copy``, which returns one, has no derivative."""
    return torch.empty_like(target).copy_(source)


_RESTORED: dict[str, Callable[[dict[str, Any], Call], Bound | None]] = {
    "aten::convolution": _convolution,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::native_group_norm": _group_norm,
    "aten::copy_": _copy,
    **dict.fromkeys(ATTENTION, _attention),
}


Respec = Callable[[TensorSpec], TensorSpec]
"""A treatment's change of one tensor."""


class Work(NamedTuple):
    """Operators that a treatment changes together: one of them, or a sequence that it replaces.

    ``as_is`` and ``treated`` are their functions with arguments, without and with the treatment. ``part`` is the number
    of treated runs per run without the treatment, ``between_bytes`` what a treated run takes besides its arguments and
    results.
    """

    calls: tuple[Call, ...]
    as_is: tuple[Bound, ...]
    treated: tuple[Bound, ...]
    part: float = 1.0
    between_bytes: int = 0

    @property
    def n(self) -> int:
        """Number of times per step."""
        return self.calls[0].n

    @property
    def seconds(self) -> float:
        """Seconds of forward and backward per step, for as many calls as the first operator has."""
        return self.n * sum(call.seconds / call.n for call in self.calls)

    @property
    def n_elements(self) -> int:
        """Elements of all tensors in all calls: ranks work if operators are not timed."""
        return sum(call.n * math.prod(spec.shape) for call in self.calls for spec in call.specs)


class Cheaper(NamedTuple):
    """Operators, and those in their place. ``size``, ``better`` and ``function`` are as in ``CheaperOperator``."""

    kind: CheaperKind
    work: Work
    site: str
    shape: tuple[int, ...]
    size: int = 0
    better: int = 0
    function: str = ""


def costliest(items: Iterable[T], kind: Callable[[T], Any], seconds: Callable[[T], float]) -> list[T]:
    """Return the items of the kind that takes the most time together; empty without items."""
    by_kind: dict[Any, list[T]] = {}
    for item in items:
        by_kind.setdefault(kind(item), []).append(item)
    return max(by_kind.values(), key=lambda found: sum(map(seconds, found)), default=[])


Readers = defaultdict[int, list[Call]]
"""The calls that read what a call wrote, by its index; those of what no call wrote are under -1."""


def readers_of(log: CallLog) -> Readers:
    """Return the readers of all calls."""
    readers: Readers = defaultdict(list)
    for call in log.calls:
        for index in call.writers:
            readers[index].append(call)
    return readers


def work_for(call: Call, treat: Callable[[Bound], Bound | None]) -> tuple[Work, ...]:
    """Return a single operator as work, changed by ``treat``; empty if it cannot be replayed."""
    bound = function_of(call)
    treated = treat(bound) if bound is not None else None
    return (Work((call,), (bound,), (treated,)),) if bound is not None and treated is not None else ()


def map_specs(change: Callable[[TensorSpec], Any], value: Any) -> Any:
    """Return nested arguments, or a bound function, with ``change`` applied to each tensor's spec."""
    if isinstance(value, TensorSpec):
        return change(value)
    if isinstance(value, (list, tuple)):
        return tuple(map_specs(change, each) for each in value)
    if isinstance(value, dict):
        return {name: map_specs(change, each) for name, each in value.items()}
    return value
