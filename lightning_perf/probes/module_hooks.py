"""Watch the forward passes of some of the user's modules in single steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from lightning_perf.seams import remove_hook


class ModuleWatch:
    """Calls functions when modules begin and end their forward pass, even if it raises.

    It uses torch's hooks on all modules, which do not change the modules themselves: copies and pickles take no hook
    along, and modules that behave differently with hooks, such as ``nn.TransformerEncoderLayer`` in evaluation, do not
    change. ``enters`` gets a module's path, positional and keyword arguments, ``leaves`` its path and output; neither
    may raise.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        enters: Callable[[str, Any, Any], None],
        leaves: Callable[[str, Any], None],
    ) -> None:
        self._paths = {id(module): path for path, module in modules.items() if can_have_hooks(module)}
        self._enters, self._leaves = enters, leaves
        self._hooks = (self._entering, self._leaving)  # kept, for they are found again by what they are

    def put(self) -> None:
        """Start watching."""
        entering, leaving = self._hooks
        register_module_forward_pre_hook(entering)
        register_module_forward_hook(leaving, always_call=True)

    def remove(self) -> None:
        """Stop watching. Can be called twice."""
        for hook in self._hooks:
            remove_global_hook(hook)

    def _entering(self, module: nn.Module, args: Any) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            # Hooks on all modules are not given keyword arguments: they are a variable of torch's calling function.
            self._enters(path, args, sys._getframe(1).f_locals.get("kwargs"))

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            self._leaves(path, output)


def remove_global_hook(hook: Any) -> None:
    """Remove a hook on the forward passes of all modules, if it is registered.

    Takes the registered object itself: an interrupt right after registering loses the handle.
    """
    registries = (value for name, value in vars(torch_module).items() if name.startswith("_global_forward_"))
    remove_hook([one for one in registries if isinstance(one, dict)], hook)


def can_have_hooks(module: nn.Module) -> bool:
    """Return whether hooks see a module's forward pass without changing it."""
    return not isinstance(module, torch.jit.ScriptModule)
