"""Hooks on the user's modules, for the few steps that are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Their fast path in evaluation, and with it the rounding of their results, depends on whether they have hooks.
_HOOKS_CHANGE = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)


class ModuleHook:
    """A module's hook that is none any more in a copy of the module: whoever copies or pickles it within the step that
    is looked at takes no probe along."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoHook, ()


class _NoHook:
    """What a copied module has in its place."""

    def __call__(self, *args: Any) -> None:
        return None


def can_have_hooks(module: nn.Module) -> bool:
    """Whether a hook leaves what the module does as it is."""
    return not isinstance(module, torch.jit.ScriptModule) and (module.training or not isinstance(module, _HOOKS_CHANGE))
