"""Divide the steps of a loop without a Trainer into phases, by the calls into torch that it makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.optim import optimizer as torch_optimizer

from lightning_perf import seams
from lightning_perf.probes import plain
from lightning_perf.probes.base import Probe, RunContext
from lightning_perf.probes.model.summary import is_compiled

FORWARD = "[Strategy]Loop.training_step"
VALIDATION_FORWARD = "[Strategy]Loop.validation_step"
"""Actions as a Trainer announces them, which `LoopTimer` knows."""

_BACKWARD = "[Strategy]Loop.backward"
_OPTIMIZER = "optimizer_step"
_ZERO_GRAD = "[LightningModule]Loop.optimizer_zero_grad"
_SCHEDULER = "[LightningModule]Loop.lr_scheduler_step"
_CHECKPOINT = "save_checkpoint"


class UserPhases(Probe):
    """Announces the parts of each step to the profiler that `LoopTimer` listens to.

    A forward pass begins where a watched module is called, and ends where another part or the step does: the loss
    belongs to it. Backward passes, optimizers and ``torch.save`` are seen whether they are watched or not.

    Attributes:
        is_validating: Whether forward passes are those of validation.
        forward: Span of the forward pass under way; None outside of one.
        profile: Returns the span of an action.
        on_optimizer: Called before the first step of an optimizer that was not seen before.
    """

    name = "user_phases"
    stages = ("fit",)
    after = ("steps",)

    def __init__(self, run: RunContext) -> None:
        self.is_validating = False
        self.forward: Any = None
        self.on_optimizer: Callable[[], None] = lambda: None
        self._trainer, self.probes, self._loop = run.trainer, run.probes, run.loop
        self.profile = run.trainer.profiler.profile
        self._thread = get_ident()
        self._optimizers: list[Any] = []  # spans of the steps under way: one optimizer may call another one's
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
        backward = _Part(self, _BACKWARD, "before_backward", "after_backward")
        seams.tap_call(torch.autograd, "backward", backward.span, undos)
        seams.tap_call(torch, "save", saving.span, undos)
        seams.tap_call(self._trainer.strategy, "save_checkpoint", saving.span, undos)  # Fabric's
        # One object each: hooks are removed by identity.
        before, after = self._before_step, self._after_step
        undos.note(lambda: seams.remove_hook([torch_optimizer._global_optimizer_pre_hooks], before))
        torch_optimizer.register_optimizer_step_pre_hook(before)
        undos.note(lambda: seams.remove_hook([torch_optimizer._global_optimizer_post_hooks], after))
        torch_optimizer.register_optimizer_step_post_hook(after)
        for thing in self._trainer.watched:
            self.watch(thing)

    def watch(self, thing: Any) -> None:
        """Watch a module, optimizer or scheduler."""
        if isinstance(thing, nn.Module):
            inner = [_ForwardHook(self, module) for module in _inner_modules(thing)]
            outer = [_ForwardHook(self, thing, inner)] if plain.stored(thing, "_compiled_call_impl") is None else []
            for hook in (*inner, *outer):
                self._undos.note(hook.remove)
                hook.module.register_forward_pre_hook(hook)
        elif isinstance(thing, torch.optim.Optimizer):
            self._watch_optimizer(seams.user_optimizer(thing))
        else:
            seams.tap_call(thing, "step", _Part(self, _SCHEDULER).span, self._undos)

    def close(self) -> None:
        self._undos.close()

    abandon = close

    # -- the user's calls ---------------------------------------------------------------------------------------------

    def forward_begins(self, hook: _ForwardHook) -> None:
        if get_ident() != self._thread:
            return
        has_graph = torch.is_grad_enabled()
        if self.is_validating:
            self._loop.outputs_have_graph = bool(self._loop.outputs_have_graph) or has_graph
        elif not (self._loop.main.is_in_batch and (has_graph or plain.stored(hook.module, "training"))):
            self._loop.timeline.charge()  # no phase of its own, but the training moves: see `HangWatch`
            return
        self.forward = self.profile(VALIDATION_FORWARD if self.is_validating else FORWARD)
        self.forward.__enter__()
        while hook.inner:  # not needed any more; each hook slows calls down
            hook.inner.pop().remove()

    def forward_ends(self) -> None:
        """End the forward pass under way, if any."""
        forward, self.forward = self.forward, None
        if forward is not None:
            forward.__exit__(None, None, None)

    def notify(self, event: str, *args: Any) -> None:
        """Call the probes that watch gradients."""
        with self.profile(f"{self._own}on_{event}"):
            self.probes.notify(event, *args)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if get_ident() != self._thread:
            return
        if id(optimizer) not in self._seen:
            self.probes.call(self.name, self._watch_optimizer, optimizer)
            self.on_optimizer()
        self.forward_ends()
        if self._loop.timeline.current is self._loop.timeline.base:
            self._optimizers.clear()  # steps that raised, after which torch calls no hook
        self._optimizers.append(self.profile(_OPTIMIZER))
        self._optimizers[-1].__enter__()

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if get_ident() != self._thread:
            return
        self.forward_ends()  # that of the optimizer's closure
        if self._optimizers:
            self._optimizers.pop().__exit__(None, None, None)
        self._trainer.global_step += not self._optimizers
        if self.probes.watches_backward:  # only the probe that watches backward passes handles it
            self.probes.notify("after_step", optimizer)

    def _watch_optimizer(self, optimizer: Any) -> None:
        if id(optimizer) not in self._seen:
            self._seen.add(id(optimizer))
            self._trainer.optimizers.append(optimizer)  # which keeps its id from being given to another
            clearing = _Part(self, _ZERO_GRAD, "before_zero_grad", "", optimizer)
            seams.tap_call(optimizer, "zero_grad", clearing.span, self._undos)


class _Part:
    """A part of a step, around a call of the user's. The same call within that call belongs to it.

    ``before`` and ``after`` are the events that probes handle, ``args`` the arguments of ``before``. Nothing in it
    raises: spans and probes are isolated.
    """

    def __init__(self, phases: UserPhases, action: str, before: str = "", after: str = "", *args: Any) -> None:
        self._phases, self._action, self._before, self._after, self._args = phases, action, before, after, args
        self._is_plain = action in (_BACKWARD, _ZERO_GRAD)  # once their events are not handled any more
        self._depth = 0
        self._span: Any = None

    def span(self) -> Any:
        """Return what to enter around a call."""
        phases = self._phases
        phases.forward_ends()
        if self._is_plain and not (self._depth or phases.probes.watches_backward):
            return phases.profile(self._action)
        return self

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            if self._before:
                self._phases.notify(self._before, *self._args)
            self._span = self._phases.profile(self._action)
            self._span.__enter__()

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._phases.forward_ends()
            self._span.__exit__(None, None, None)
            if self._after:
                self._phases.notify(self._after)


class _ForwardHook:
    """Hook called before a watched module. In copies and files of the module, it is a hook without effect.

    Copies and files must not contain the probes of a run, nor need this package.
    """

    def __init__(self, phases: UserPhases, module: nn.Module, inner: list[_ForwardHook] | None = None) -> None:
        self.module, self.inner = module, list(inner or ())
        self._phases: UserPhases | None = phases

    def __call__(self, module: Any, inputs: Any) -> None:
        # First: dynamo guards on attributes that compiled code reads, and would recompile when the phases change.
        if not is_compiling():
            phases = self._phases
            if phases is not None and phases.forward is None:
                phases.forward_begins(self)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")

    def remove(self) -> None:
        """Remove the hook. Can be called twice."""
        self._phases = None
        seams.remove_hook([self.module._forward_pre_hooks], self)


def _inner_modules(module: Any) -> Iterator[nn.Module]:
    """Yield the modules that a step may call instead of the watched one, unless something in it is compiled.

    A step may call a method of a LightningModule instead of the module itself. Compiled code would be compiled again if
    a module in it had a hook.
    """
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
