"""Count a step without running it: forward and backward of a copy of the model, on fake tensors.

For steps whose operators a dispatch mode does not see: those of compiled code, and of strategies that move tensors by
themselves. Nothing is computed, and the model that trains is only read.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules import module as torch_module

from lightning_perf.interrupts import error_text
from lightning_perf.records import Basis, ModelProfile

from . import module_walk, plain
from .compiler import is_any_compiled
from .fake_copy import copied
from .flops import ArithmeticCounter
from .machine import device_name
from .replay.probe import MOST_S, SHARE
from .replay.state import refusal, unchanged
from .state_guard import RefusedError, StateGuard

LEAST_S = 3.0
"""A pass may take as long as replays, but at least this: torch's first fake operators of a kind are slow."""

RETRY_FACTOR = 3.0
"""A pass that took too long is repeated once there is so much more time."""

_NEEDS_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
_OF_TRAINER = ("global_step", "current_epoch", "max_epochs", "max_steps", "world_size", "global_rank", "local_rank",
               "is_global_zero", "num_training_batches", "accumulate_grad_batches")  # fmt: skip


def eager() -> AbstractContextManager[Any]:
    """Run compiled functions uncompiled, so that their operators are visible (torch 2.6 and newer)."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    return set_stance("force_eager") if set_stance is not None else nullcontext()


class FakePass:
    """Counts one step from the shapes of its batch, at any time after it.

    Args:
        batch: The batch; only its shapes are kept.
        device: Where the model computes.
        step: Its index.

    Attributes:
        reason: Why the step is not counted; empty if it is.
    """

    def __init__(self, batch: Any, device: torch.device, step: int | None = None) -> None:
        self.reason = "it is counted in the next pause of the training"
        self._device, self._step = device, step
        self._least_ns = 0.0
        self._mode: Any = FakeTensorMode(shape_env=ShapeEnv())
        self._batch = copied(batch, self._mode, device)
        self._n_samples = plain.batch_size(batch)

    def profile(
        self,
        module: nn.Module,
        step: Callable[[Any, Any], Any],
        now_ns: Callable[[], int],
        until_ns: int,
        depth: int = 1,
        context: AbstractContextManager[Any] | None = None,
    ) -> ModelProfile:
        """Return what forward and backward compute, move and save.

        Args:
            module: The model, wrapped or not.
            step: Function of the model's copy and the fake batch that returns a training step's output.
            now_ns: The host's clock.
            until_ns: When to give up.
            depth: Of the modules that are listed.
            context: Precision of the step.

        Raises:
            Exception: The step cannot be counted.
        """

        def clock() -> int:
            now = now_ns()
            if now > until_ns:
                raise TimeoutError("it takes longer than a pause of the training may")
            return now

        with ExitStack() as undo:
            undo.enter_context(_undisturbed(self._device))
            copy = copied(module, self._mode, self._device)
            counter = ArithmeticCounter(copy, depth, clock, below=self._mode)
            known = (*module_walk.parameters(copy), *module_walk.buffers(copy), *plain.tensors_in(self._batch))
            saved = {_storage(tensor): 0 for tensor in known}

            def pack(tensor: torch.Tensor) -> torch.Tensor:
                saved.setdefault(_storage(tensor), tensor.untyped_storage().nbytes())
                return tensor

            undo.enter_context(self._mode)
            undo.enter_context(context or nullcontext())
            dtype = _sharded_dtype(module)
            if dtype is not None:
                undo.enter_context(torch.autocast(self._device.type, dtype))
            undo.enter_context(StateGuard(base for each in module_walk.modules(copy) for base in type(each).__mro__))
            with counter, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                output = step(copy, self._batch)
            loss = output if isinstance(output, torch.Tensor) else plain.item_or_none(output, "loss")
            if isinstance(loss, torch.Tensor) and loss.requires_grad:
                counter.direction = "backward"
                with counter:
                    loss.backward()  # type: ignore[no-untyped-call]
        if counter.failure:
            raise RefusedError(counter.failure)
        profile = counter.profile(device_name(self._device), self._n_samples, self._step)
        basis: Basis = "uncompiled" if is_any_compiled(module) else "fake"
        return msgspec.structs.replace(profile, basis=basis, saved_bytes=sum(saved.values()))

    def of_trainer(
        self, trainer: Any, module: nn.Module, now_ns: Callable[[], int], trained_ns: int, depth: int
    ) -> ModelProfile | None:
        """Return the profile of a Trainer's step, or None where ``reason`` says why.

        It takes at most what replays may take after a training of ``trained_ns``.
        """
        limit_ns = round(min(MOST_S * 1e9, max(LEAST_S * 1e9, SHARE * trained_ns)))
        if limit_ns < self._least_ns:
            return None
        self._least_ns = RETRY_FACTOR * limit_ns
        self.reason = _refusal(trainer, module, self._device)
        if self.reason:
            return None
        try:
            context = trainer.precision_plugin.train_step_context()
            return self.profile(module, training_step(trainer), now_ns, now_ns() + limit_ns, depth, context)
        except Exception as error:  # noqa: BLE001 - the reason is recorded
            text = (error_text(error).splitlines() or [""])[0][:200]
            if type(error).__name__ in _NEEDS_VALUES:
                text = f"it depends on values of tensors ({type(error).__name__})"
            self.reason = f"the step cannot be counted on fake tensors: {text}"
            return None


def training_step(trainer: Any) -> Callable[[Any, Any], Any]:
    """Return a function that calls the training step of a copied LightningModule, which logs nothing."""

    def step(copy: Any, batch: Any) -> Any:
        if not copy.automatic_optimization:
            raise RefusedError("manual optimization needs the optimizers")
        of_trainer = {name: getattr(trainer, name, None) for name in _OF_TRAINER}
        copy._trainer = types.SimpleNamespace(training=True, **of_trainer)
        vars(copy).update(log=_nothing, log_dict=_nothing)
        code = getattr(getattr(copy.training_step, "__func__", None), "__code__", None)
        has_index = code is None or code.co_argcount > 2 or code.co_flags & 4  # 4: *args
        return copy.training_step(batch, 0) if has_index else copy.training_step(batch)

    return step


def _refusal(trainer: Any, module: nn.Module, device: torch.device) -> str:
    """Return why the step of a Trainer cannot be counted now; empty if it can."""
    if not hasattr(torch.compiler, "set_stance") and is_any_compiled(module):
        return "this version of torch cannot run compiled code uncompiled"
    if plain.stored(trainer.strategy, "_tensor_parallel_size", 1) != 1:
        return "the operators of compiled code that several ranks share are not visible"
    return refusal(device)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _sharded_dtype(root: nn.Module) -> torch.dtype | None:
    """Return the dtype in which the modules that ``fully_shard`` wrapped compute; None if it is their parameters'."""
    states = (getattr(module, "_get_fsdp_state", None) for module in module_walk.modules(root)
              if "FSDPModule" in module_walk.library_names(type(module)))  # fmt: skip
    dtypes = (plain.stored(plain.stored(state(), "_mp_policy"), "param_dtype") for state in states if state is not None)
    return next((dtype for dtype in dtypes if dtype is not None), None)


class _Muted:
    """A stream that drops what one thread writes."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Call Python's signal handlers afterwards: C++ ends the process if one raises while it asks for a device."""
    arrived: list[int] = []
    with ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    undo.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, _: arrived.append(number))
        yield
    for one in arrived:
        signal.raise_signal(one)


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Keep random streams, hooks on all modules, and what is printed, as they are without the pass."""
    registries = [each for name, each in vars(torch_module).items()
                  if name.startswith("_global_") and isinstance(each, dict)]  # fmt: skip
    with ExitStack() as undo:
        undo.enter_context(_signals_wait())
        undo.callback(random.setstate, random.getstate())
        undo.callback(np.random.set_state, np.random.get_state())
        undo.enter_context(unchanged(device))
        if "torch._dynamo" in sys.modules:
            undo.enter_context(eager())
        for registry in registries:
            undo.callback(registry.update, dict(registry))
            registry.clear()
        for name in ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch.__trace"):
            log = logging.getLogger(name)
            undo.callback(setattr, log, "disabled", log.disabled)
            log.disabled = True
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            undo.callback(setattr, sys, name, stream)
            setattr(sys, name, _Muted(stream))
        yield
