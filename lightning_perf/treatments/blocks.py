"""The blocks that a network repeats."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lightning_perf.errors import TreatmentError


def repeated_blocks(module: Any) -> list[Any]:
    """Modules of one class, made of other modules, that stand side by side: transformer layers, residual blocks.

    The outermost are taken. A ``Sequential`` counts where it is itself an item of a list or sequence: the stages of a
    ResNet are sequences of blocks, not blocks.

    Args:
        module: The network; it may be a LightningModule.

    Returns:
        The blocks in order of definition; each has parameters.

    Raises:
        TreatmentError: There are none.
    """
    found: list[Any] = []
    _collect(module, found)
    if not found:
        raise TreatmentError(
            f"{type(module).__name__} repeats no block: expected several modules of one class, made of other modules, "
            "side by side, as in nn.ModuleList([Block() for _ in range(12)])"
        )
    return found


def _collect(module: Any, found: list[Any]) -> None:
    from torch import nn

    children = list(dict.fromkeys(module.children()))
    is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
    kinds = Counter(kind for child in children if (kind := _kind(child, is_list)) is not None)
    for child in children:
        kind = _kind(child, is_list)
        if kind is not None and kinds[kind] > 1:
            found.append(child)
        else:
            _collect(child, found)


def _kind(module: Any, is_in_list: bool) -> Any:
    """What makes it one of several; None where it is no block."""
    from torch import nn

    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) or not any(True for _ in module.children()):
        return None
    if next(module.parameters(), None) is None:
        return None
    if isinstance(module, nn.Sequential):
        return tuple(type(child) for child in module.children()) if is_in_list else None
    return type(module)
