"""Find the blocks that a network repeats."""

from collections import Counter
from typing import Any

from lightning_perf.errors import TreatmentError


def repeated_blocks(module: Any) -> list[Any]:
    """Return the outermost sibling modules of one class, such as transformer layers or residual blocks.

    Each has parameters and child modules; they are in order of definition. A ``Sequential`` counts only as an item of a
    list or of another ``Sequential``, because the stages of a ResNet are sequences of blocks, not blocks.

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
    """Return what repeated blocks have in common; None if the module is not a block."""
    from torch import nn

    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) or not any(True for _ in module.children()):
        return None
    if next(module.parameters(), None) is None:
        return None
    if isinstance(module, nn.Sequential):
        return tuple(type(child) for child in module.children()) if is_in_list else None
    return type(module)
