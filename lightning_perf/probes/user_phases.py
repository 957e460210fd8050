"""Divide the steps of a loop without a Trainer into phases, by the calls into torch that it makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.optim import optimizer as torch_optimizer

from lightning_perf import seams

from . import plain
from .base import Probe, RunContext
from .model import is_compiled

FORWARD = "[Strategy]Loop.training_step"
VALIDATION_FORWARD = "[Strategy]Loop.validation_step"
"""Actions as a Trainer announces them, which `LoopProbe` knows."""

_BACKWARD = "[Strategy]Loop.backward"
_OPTIMIZER = "optimizer_step"
_ZERO_GRAD = "[LightningModule]Loop.optimizer_zero_grad"
_SCHEDULER = "[LightningModule]Loop.lr_scheduler_step"
_CHECKPOINT = "save_checkpoint"


class UserPhases(Probe):
    """Announces the parts of each step to the profiler that `LoopProbe` listens to.

    A forward pass begins where a watched module is called, and ends where another part or the step does: the loss
    belongs to it. Backward passes, optimizers and ``torch.save`` are seen whether they are watched or not.

    Attributes:
        is_validating: Whether forward passes are those of validation.
        is_forward: Whether a forward pass is under way.
        on_optimizer: Called before the first optimizer steps, whose optimizer is known then.
    """

    name = "user_phases"
    stages = ("fit",)
    after = ("steps",)

    def __init__(self, run: RunContext) -> None:
        self.is_forward = self.is_validating = False
        self.on_optimizer: Callable[[], None] | None = None
        self._trainer, self._probes, self._loop = run.trainer, run.probes, run.loop
        self._profile = run.trainer.profiler.profile
        self._thread = get_ident()
        self._open: list[Any] = []  # the parts under way, innermost last
        self._seen: set[int] = set()
        self._undos = seams.Undos()
        self._own = f"[Callback]{run.loop.owner.state_key}."

    @classmethod
    def open(cls, run: RunContext) -> UserPhases | None:
        """Watch a loop without a Trainer."""
        return None if seams.has_trainer(run.trainer) else cls(run)

    def start(self) -> None:
        """Watch torch, and what the user named."""
        undos = self._undos
        saving = _Part(self, _CHECKPOINT)
        seams.tap_torch(torch.autograd, "backward", _Part(self, _BACKWARD, "before_backward", "after_backward"), undos)
        seams.tap_torch(torch, "save", saving, undos)
        seams.tap_torch(self._trainer.strategy, "save_checkpoint", saving, undos)  # Fabric's
        # Each one object, by which it is found again.
        before, after = self._before_step, self._after_step
        registries = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
        undos.note(lambda: seams.remove_hook(registries[:1], before))
        torch_optimizer.register_optimizer_step_pre_hook(before)
        undos.note(lambda: seams.remove_hook(registries[1:], after))
        torch_optimizer.register_optimizer_step_post_hook(after)
        for thing in self._trainer.watched:
            self.watch(thing)

    def watch(self, thing: Any) -> None:
        """Watch a module, optimizer or scheduler."""
        if isinstance(thing, nn.Module):
            for module in _called_modules(thing):
                hook = _ForwardHook(self)
                self._undos.note(hook.release)
                self._undos.note(partial(seams.remove_hook, [module._forward_pre_hooks], hook))
                module.register_forward_pre_hook(hook)
        elif isinstance(thing, torch.optim.Optimizer):
            self._watch_optimizer(seams.user_optimizer(thing))
        else:
            seams.tap_torch(thing, "step", _Part(self, _SCHEDULER), self._undos)

    def close(self) -> None:
        """Restore everything. Can be called twice."""
        self._undos.close()

    abandon = close

    # -- the user's calls ---------------------------------------------------------------------------------------------

    def forget_open(self) -> None:
        """Forget parts that an exception left open."""
        self._open.clear()
        self.is_forward = False

    def forward_begins(self, module: Any) -> None:
        """Begin a forward pass, unless one is under way."""
        if get_ident() != self._thread:
            return
        has_graph = torch.is_grad_enabled()
        if self.is_validating:
            self._loop.outputs_have_graph = bool(self._loop.outputs_have_graph) or has_graph
        elif not (self._loop.main.is_in_batch and (has_graph or plain.stored(module, "training"))):
            return
        self.enter(VALIDATION_FORWARD if self.is_validating else FORWARD)
        self.is_forward = True

    def forward_ends(self) -> None:
        """End the forward pass under way, if any."""
        if self.is_forward:
            self.is_forward = False
            if self._open:
                self._open.pop().__exit__(None, None, None)

    def enter(self, action: str, event: str = "", *args: Any) -> None:
        """Begin a part of a step."""
        try:
            if self.is_forward:
                self.forward_ends()
            if event:
                self._notify(event, *args)
            part = self._profile(action)
            self._open.append(part)
            part.__enter__()
        except Exception as error:  # noqa: BLE001 - reported; the training goes on unmeasured
            self._probes.switch_off(self.name, error)

    def leave(self, event: str = "") -> None:
        """End the part that began last."""
        try:
            self.forward_ends()
            if self._open:
                self._open.pop().__exit__(None, None, None)
            if event:
                self._notify(event)
        except Exception as error:  # noqa: BLE001 - as above
            self._probes.switch_off(self.name, error)

    def _notify(self, event: str, *args: Any) -> None:
        if self._probes.watches_backward:
            with self._profile(f"{self._own}on_{event}"):
                self._probes.notify(event, *args)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if get_ident() == self._thread:
            if id(optimizer) not in self._seen:
                self._probes.call(self.name, self._watch_optimizer, optimizer)
            if self.on_optimizer is not None:
                ready, self.on_optimizer = self.on_optimizer, None
                ready()
            self.enter(_OPTIMIZER)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if get_ident() == self._thread:
            self.leave()
            self._trainer.global_step += 1
            if self._probes.watches_backward:  # as the only probe that handles it does
                self._probes.notify("after_step", optimizer)

    def _watch_optimizer(self, optimizer: Any) -> None:
        if id(optimizer) not in self._seen:
            self._seen.add(id(optimizer))
            self._trainer.optimizers.append(optimizer)  # which keeps its id from being given to another
            seams.tap_torch(
                optimizer, "zero_grad", _Part(self, _ZERO_GRAD, "before_zero_grad", "", optimizer), self._undos
            )


class _Part:
    """A part of a step, around a call of the user's. The same call within that call belongs to it.

    ``before`` and ``after`` are the events that probes handle, ``args`` the arguments of ``before``.
    """

    def __init__(self, phases: UserPhases, action: str, before: str = "", after: str = "", *args: Any) -> None:
        self._phases, self._begin, self._after, self._depth = phases, (action, before, *args), after, 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._phases.enter(*self._begin)

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._phases.leave(self._after)


class _ForwardHook:
    """Called before a watched module. Copies of the module, and files that it is saved to, have a hook without effect.

    Copies and files must not hold the probes of a run, nor need this package.
    """

    def __init__(self, phases: UserPhases) -> None:
        self._phases: UserPhases | None = phases

    def __call__(self, module: Any, inputs: Any) -> None:
        phases = self._phases
        if not (phases is None or phases.is_forward or is_compiling()):
            phases.forward_begins(module)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def release(self) -> None:
        """Do nothing from now on."""
        self._phases = None


def _called_modules(module: Any) -> Iterator[nn.Module]:
    """Yield the module and, if nothing in it is compiled, the modules in it that a step may call directly.

    A step may call a method of a LightningModule instead of the module itself. Compiled code would be compiled again if
    a module in it had a hook.
    """
    if plain.stored(module, "_compiled_call_impl") is None:
        yield module
    if not is_compiled(module):
        inside = seams.user_module(module)
        if inside is not module:
            yield inside
        yield from _children(inside)


def _children(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):  # which are never called
            yield from _children(child)
        else:
            yield child
