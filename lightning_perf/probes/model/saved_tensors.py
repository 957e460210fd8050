"""Count the tensors that the forward pass of one step saves for its backward pass."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from lightning_perf.interrupts import raise_if_from_signal
from lightning_perf.probes.memory.storages import Key, StorageCount, storages_of
from lightning_perf.probes.sampled_steps.tracing import ModuleWatch, StepTracer, current_mode, remove_global_hook
from lightning_perf.seams import Undos, change_attribute

from . import module_walk

_HOOKS: Any = torch._C._autograd
"""Torch's stack of default hooks on saved tensors. ``disable_saved_tensors_hooks`` looks up its functions here at each
call, under whatever name the user imported it."""

_DISABLE = "_saved_tensors_hooks_disable"
_APPLIES = "_are_functorch_transforms_active"
"""``torch.autograd.Function.apply`` calls it before saving anything, even if the user bound ``apply`` earlier."""

_DISABLED = "hooks on saved tensors were disabled during the step, as transforms of torch.func do"

_APPLY: Any = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)
"""Code of ``torch.autograd.Function.apply``; None from torch 2.15 on, which has no Python code for it."""


class SavedTensors(StepTracer):
    """Counts tensors as autograd saves them, as a context manager around a forward pass.

    Tensors are passed on unchanged. What ``count`` counted before (parameters, the batch) and views of it do not count.
    Under activation checkpointing, or where the user's hooks move tensors elsewhere, only what reaches autograd counts.
    Sharded parameters (FSDP), gathered for the forward pass of their module, are not activations. ``modules`` are the
    top-level modules by name, for sums by module.

    Nothing is counted, and ``failure`` says why, where hooks would change the results of user code: below the user's
    own hooks (torch calls only the innermost), where hooks are disabled, e.g. by transforms of ``torch.func``, and once
    an autograd function of the user's runs, which would get new objects instead of the tensors it saved.
    """

    def __init__(self, count: StorageCount, modules: dict[str, nn.Module], now_ns: Callable[[], int]) -> None:
        self.n_bytes = 0
        self.n_tensors = 0
        self.by_module: dict[str, int] = {}
        self.failure = ""
        self.cost_ns = 0
        self._count = count
        self._watch = ModuleWatch(modules)
        self._now_ns = now_ns
        self._kept: dict[Key, tuple[str, int]] = {}
        self._hooks: tuple[Any, Any] | None = None
        self._thread = threading.get_ident()
        self._gathered_hook = partial(self._charged, self._gathered)  # one object: hooks are removed by identity
        self._undos = Undos()

    def __enter__(self) -> None:
        self.failure = self.failure or _why_not()
        if not self.failure:
            self._charged(self._install)
            if self.failure:
                self._remove()

    def _install(self) -> None:
        self._watch.install()
        # Hooks on all modules run before those of one module, which give gathered parameters back.
        register_module_forward_hook(self._gathered_hook)
        # Below a compiled function dynamo would compile the hook too, and blame its graph breaks on the user.
        dynamo = sys.modules.get("torch._dynamo")
        pack = self._pack if dynamo is None else dynamo.disable(self._pack)
        self._hooks = (pack, _unpack)  # first: an interrupt may come right after they are in place
        _HOOKS._push_saved_tensors_default_hooks(pack, _unpack)
        # Torch's function that disables hooks raises while any are in place.
        self._patch(_HOOKS, _DISABLE, partial(self._give_way, _DISABLED))
        if _APPLY is not None:
            self._patch(torch._C, _APPLIES, self._before_applying)
        elif (functions := [*_functions_of_others(torch.autograd.Function)]) and _has_compiled():
            # A changed function would be compiled again.
            self._give_way(f"the autograd function {functions[0].__name__} may be part of compiled code")
        else:
            for each in functions:
                self._patch_forward(each)

    @property
    def is_in_place(self) -> bool:
        """Whether saved tensors are being counted."""
        return self._hooks is not None

    def __exit__(self, *exception: object) -> None:
        self._charged(self._remove)

    def _remove(self) -> None:
        if self._hooks is not None:
            _pop(self._hooks)
            self._hooks = None
        self._undos.close()
        self._watch.remove()
        remove_global_hook(self._gathered_hook)

    def _patch(self, owner: Any, name: str, before: Callable[[], None]) -> None:
        """Call ``before`` ahead of a function of torch's binding, until these hooks are removed."""
        original = getattr(owner, name)

        def patched(*args: Any, **kwargs: Any) -> Any:
            before()
            return original(*args, **kwargs)

        change_attribute(owner, name, patched, self._undos)

    def _before_applying(self) -> None:
        """Stop counting for an autograd function of the user's."""
        caller = sys._getframe(2)
        if caller.f_code is _APPLY:
            kind = caller.f_locals.get("cls")
            if isinstance(kind, type) and not _is_of_torch(kind):
                self._give_way_for(kind)

    def _patch_forward(self, kind: type) -> None:
        """Stop counting ahead of ``forward`` of an autograd function."""
        original = kind.__dict__["forward"]
        bound = original.__get__(None, kind)

        @functools.wraps(bound)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._give_way_for(kind)
            return bound(*args, **kwargs)

        change_attribute(kind, "forward", staticmethod(forward), self._undos)

    def _give_way_for(self, kind: type) -> None:
        self._give_way(f"hooks would replace the tensors that the autograd function {kind.__name__} saves")

    def _give_way(self, reason: str) -> None:
        if self._hooks is not None and threading.get_ident() == self._thread:  # the stack of hooks is the thread's own
            self.failure = reason
            self._remove()

    def _gathered(self, module: nn.Module, args: Any, output: Any) -> None:
        """Subtract saved parameters that did not exist when parameters were counted."""
        for parameter in module_walk.own_parameters(module):
            for storage in storages_of(parameter):
                name, n_bytes = self._kept.pop(storage.key, ("", 0))
                if n_bytes:
                    self.n_bytes -= n_bytes
                    self.by_module[name] -= n_bytes
                    self._count.forget(storage.key)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._charged(self._add, tensor)
        return tensor

    def _add(self, tensor: torch.Tensor) -> None:
        added = self._count.add((tensor,))
        self.n_tensors += 1
        self.n_bytes += added
        name = self._watch.innermost
        self.by_module[name] = self.by_module.get(name, 0) + added
        if added:
            self._kept.update((storage.key, (name, storage.n_bytes)) for storage in storages_of(tensor))


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def _functions_of_others(kind: type) -> Iterator[type]:
    """Yield the autograd functions that torch did not define and that have a ``forward`` of their own."""
    each: type
    for each in kind.__subclasses__():
        if "forward" in each.__dict__ and not _is_of_torch(each):
            yield each
        yield from _functions_of_others(each)


def _has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(dynamo.utils.counters["frames"])


def are_hooks_in_place() -> bool:
    """Return whether someone's hooks would see tensors that are saved now."""
    if not _HOOKS._saved_tensors_hooks_is_enabled():
        return False
    try:
        _HOOKS._saved_tensors_hooks_disable("")  # raises where hooks are in place; torch 2.4 cannot list them
    except RuntimeError as error:
        raise_if_from_signal(error)
        return True
    finally:
        _HOOKS._saved_tensors_hooks_enable()
    return False


def _why_not() -> str:
    """Return why hooks would change the user's results or errors; empty if they would not."""
    if not _HOOKS._saved_tensors_hooks_is_enabled():
        return "hooks on saved tensors are disabled in this step"
    if are_hooks_in_place():
        return "the script's own hooks on saved tensors are in place"
    if current_mode() is not None:  # torch detaches what it hands to hooks
        return "a dispatch mode of the script is in place"
    return ""


def _pop(hooks: tuple[Any, Any]) -> None:
    """Remove a pair of hooks from the stack; the user's hooks above it stay (in torch 2.4, there must be none)."""
    innermost = getattr(_HOOKS, "_top_saved_tensors_default_hooks", None)
    if innermost is None:
        _HOOKS._pop_saved_tensors_default_hooks()
        return
    above = []
    try:
        while (top := innermost(True)) is not None:
            _HOOKS._pop_saved_tensors_default_hooks()
            if top[0] is hooks[0]:
                break
            above.append(top)
    finally:  # also where an interrupt came
        for each in reversed(above):
            _HOOKS._push_saved_tensors_default_hooks(*each)
