"""Which operators make the host wait for a device, and how a user writes them."""

from __future__ import annotations

import dis
from typing import Any

import torch

from .code_lines import Sight

_ALWAYS_WAIT = {
    "nonzero": "nonzero",
    "masked_select": "boolean mask",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "equal": "equal",
    "bincount": "bincount",
    "repeat_interleave": "repeat_interleave",
}


def waiting_word(name: str, args: Any, out: Any, sight: Sight, device_type: str) -> str:
    """The word for an operator that makes the host wait; empty for others.

    Args:
        name: The operator's, without its namespace and the underscore of one in place.
        args: Its arguments.
        out: Its result.
        sight: What stands above it.
        device_type: Of the run: what lies elsewhere is not waited for. ``"cpu"`` for what would wait on a device.
    """

    def is_on_device(tensor: Any) -> bool:
        return bool(tensor.device.type == device_type)

    if name == "_local_scalar_dense":
        return _reading_word(sight) if is_on_device(args[0]) else ""
    if name in _ALWAYS_WAIT:
        return _ALWAYS_WAIT[name] if args and is_on_device(args[0]) else ""
    if name in ("index", "_unsafe_index", "index_put", "_index_put_impl"):
        is_masked = any(getattr(each, "dtype", None) in (torch.bool, torch.uint8) for each in args[1])
        is_one = name.endswith(("put", "impl")) and args[2].numel() == 1  # becomes a masked_fill: nobody waits
        return "boolean mask" if is_masked and not is_one and is_on_device(args[0]) else ""
    if device_type == "cpu":
        return ""
    if name == "_to_copy":
        return "cpu" if out.device.type == "cpu" and is_on_device(args[0]) else ""
    if name == "copy":
        return "copy_" if args[0].device.type == "cpu" and is_on_device(args[1]) else ""
    return ""


def _reading_word(sight: Sight) -> str:
    """How the user wrote that a number is read."""
    if any(function == "__format__" for _, function in sight.via):
        return "format(tensor)"
    frame = sight.frame
    if frame is None or not (0 <= frame.f_lasti < len(frame.f_code.co_code)):
        return "item"
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    is_asked = ("JUMP" in operation and "_IF_" in operation) or operation in ("UNARY_NOT", "TO_BOOL")
    return "bool(tensor)" if is_asked and not sight.via else "item"


def is_optimizers(sight: Sight) -> bool:
    """Torch's optimizers keep their counters on the host: reading these waits for nothing."""
    return any(function == "step" or file.startswith(("adam", "sgd", "optimizer")) for file, function in sight.via)
