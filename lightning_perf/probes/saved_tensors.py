"""What the forward pass of one step keeps for its backward pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import graph
from torch.nn.modules.module import register_module_forward_hook

from .module_hooks import ModuleHook, can_have_hooks
from .storages import Key, StorageCount, storages_of


class SavedTensors:
    """Counts tensors as autograd saves them, as a context manager around a forward pass.

    Each is handed on as it is, so that the backward pass computes with the very same tensors. What was counted before
    (parameters, the batch) and views of it count nothing. Regions under activation checkpointing, or whose tensors
    the user moves elsewhere with hooks of their own, keep what they keep: only what reaches autograd here is counted.
    Sharded parameters (FSDP) are gathered for the forward pass of their module and given back after it: no activations.

    Transforms of ``torch.func`` refuse to run below such hooks. Where one begins, these step aside for good, and the
    measurement has failed.

    Args:
        count: Knows what was counted before.
        modules: Top-level modules by name; what is saved while one of them runs is its own.
        now_ns: The host's clock.
    """

    def __init__(self, count: StorageCount, modules: dict[str, nn.Module], now_ns: Callable[[], int]) -> None:
        self.n_bytes = 0
        self.n_tensors = 0
        self.by_module: dict[str, int] = {}
        self.failure = ""
        self.own_ns = 0
        self._count = count
        self._modules = modules
        self._now_ns = now_ns
        self._running: list[str] = []
        self._kept: dict[Key, tuple[str, int]] = {}
        self._handles: list[Any] = []
        self._hooks: Any = None
        self._refuses: Any = None

    def __enter__(self) -> None:
        begin = self._now_ns()
        try:
            for name, module in self._modules.items():
                if can_have_hooks(module):
                    self._handles.append(module.register_forward_pre_hook(ModuleHook(self._entering(name))))
                    self._handles.append(module.register_forward_hook(ModuleHook(self._leaving), always_call=True))
            # Hooks on all modules run before those of one module, which give gathered parameters back.
            self._handles.append(register_module_forward_hook(self._gathered))
            # Below a compiled function dynamo would compile the hook too, and count the user for what breaks in it.
            dynamo = sys.modules.get("torch._dynamo")
            pack = self._pack if dynamo is None else dynamo.disable(self._pack)
            hooks = graph.saved_tensors_hooks(pack, _unpack)
            hooks.__enter__()
            self._hooks = hooks
            self._refuses = graph.disable_saved_tensors_hooks
            graph.disable_saved_tensors_hooks = self._step_aside
        except Exception as error:  # noqa: BLE001 - told in the record: it was not measured
            self.failure = f"{type(error).__name__}: {error}"
            self._remove()
        self.own_ns += self._now_ns() - begin

    @property
    def is_in_place(self) -> bool:
        """Whether saved tensors are looked at now."""
        return self._hooks is not None

    def __exit__(self, *exception: object) -> None:
        begin = self._now_ns()
        self._remove()
        self.own_ns += self._now_ns() - begin

    def _remove(self) -> None:
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.__exit__()
        if self._refuses is not None and graph.disable_saved_tensors_hooks == self._step_aside:
            graph.disable_saved_tensors_hooks = self._refuses
        self._refuses = None
        while self._handles:
            self._handles.pop().remove()

    @contextmanager
    def _step_aside(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Stands in for ``torch.autograd.graph.disable_saved_tensors_hooks`` while the hooks are in place."""
        self.failure = "a transform of torch.func ran, which bears no hooks on saved tensors"
        refuses = self._refuses
        self._remove()
        with refuses(*args, **kwargs):
            yield

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self._running.append(name)

        return enter

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._running:
            self._running.pop()

    def _gathered(self, module: nn.Module, args: Any, output: Any) -> None:
        """Takes out what autograd saved of parameters that were not there when the parameters were counted."""
        begin = self._now_ns()
        try:
            for parameter in module.parameters(recurse=False):
                for storage in storages_of(parameter):
                    name, n_bytes = self._kept.pop(storage.key, ("", 0))
                    if n_bytes:
                        self.n_bytes -= n_bytes
                        self.by_module[name] -= n_bytes
                        self._count.forget(storage.key)
        except Exception as error:  # noqa: BLE001 - told in the record; the step goes on whatever happens
            self.failure = f"{type(error).__name__}: {error}"
        self.own_ns += self._now_ns() - begin

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        begin = self._now_ns()
        try:
            added = self._count.add((tensor,))
            self.n_tensors += 1
            self.n_bytes += added
            name = self._running[-1] if self._running else ""
            self.by_module[name] = self.by_module.get(name, 0) + added
            if added:
                self._kept.update((storage.key, (name, storage.n_bytes)) for storage in storages_of(tensor))
        except Exception as error:  # noqa: BLE001 - told in the record; the step needs its tensor whatever happens
            self.failure = f"{type(error).__name__}: {error}"
        self.own_ns += self._now_ns() - begin
        return tensor


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def top_level_modules(root: nn.Module) -> dict[str, nn.Module]:
    """The children of a module by name; where all hangs below a single one, that one's children."""
    prefix, children = "", dict(root.named_children())
    while len(children) == 1:
        [(name, only)] = children.items()
        below = dict(only.named_children())
        if not below or next(only.parameters(recurse=False), None) is not None:
            break
        prefix, children = f"{prefix}{name}.", below
    return {f"{prefix}{name}": child for name, child in children.items()}
