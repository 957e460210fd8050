"""Watch the calls of modules and compiled functions in one step, to count them later from their shapes."""

import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lightning_perf.probes import plain
from lightning_perf.probes.sampled_steps.tracing import StepTracer
from lightning_perf.probes.settings.compiler import is_any_compiled

from .fake_copy import Copier, wrapper_of

STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
"""Strategies under which all operations of a step can be counted in it: others shard or move tensors themselves."""

_CALL = nn.Module._wrapped_call_impl.__code__
_COMPILED_CALLS = ("compile_wrapper", "_fn")  # of dynamo, in different versions


class ModuleCall(NamedTuple):
    """One call of a module or compiled function, its tensors replaced by fake ones."""

    function: Any
    args: Any
    kwargs: Any
    has_grad: bool
    autocast: torch.dtype | None


class CallWatch(StepTracer):
    """Watches the outermost calls of modules and compiled functions in the forward pass of one step.

    It uses ``sys.setprofile``: hooks would make torch compile again, or choose other kernels.
    """

    def __init__(
        self, device: torch.device, now_ns: Callable[[], int], n_samples: int | None = None, step: int | None = None
    ) -> None:
        self.failure, self.cost_ns = "", 0
        self.device, self.n_samples, self.step = device, n_samples, step
        self.calls: list[ModuleCall] = []
        self._now_ns = now_ns
        self.mode: Any = FakeTensorMode()
        self._outer: types.FrameType | None = None
        # Called from a compiled function, this would be compiled too.
        dynamo = sys.modules.get("torch._dynamo")
        self._profile: Any = self._on_event if dynamo is None else dynamo.disable(self._on_event)

    def enters(self, name: str) -> None:
        if name == "training_step" and not self.failure:
            if sys.getprofile() is not None:
                self.failure = "a profiler of the script is in place"
            else:
                sys.setprofile(self._profile)

    def leaves(self, name: str) -> None:
        if name == "training_step":
            self.close()

    def close(self) -> bool:
        if sys.getprofile() is self._profile:
            sys.setprofile(None)
        self._outer = None
        return True

    def _on_event(self, frame: types.FrameType, event: str, _: Any) -> None:
        if frame is self._outer:
            if event == "return":
                self._outer = None
        elif event == "call" and self._outer is None and not self.failure:
            code = frame.f_code
            if code is _CALL or (code.co_name in _COMPILED_CALLS and code.co_filename.endswith("eval_frame.py")):
                self._charged(self._called, frame, code is _CALL)

    def _called(self, frame: types.FrameType, is_module: bool) -> None:
        variables = frame.f_locals
        function: Any = variables.get("self" if is_module else "fn")
        if is_module:
            is_redirected = "_ForwardRedirection" in getattr(plain.stored(function, "forward"), "__qualname__", "")
            if is_redirected or wrapper_of(function) not in ("", "OptimizedModule"):
                return  # the wrapped module is called next
        elif function is None or "callback" not in variables:  # of dynamo's ``disable``
            return
        self._outer = frame
        of_batch = Copier(self.mode, self.device, copies_modules=False)
        kind = self.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        args, kwargs = of_batch(variables["args"]), of_batch(variables["kwargs"])
        self.calls.append(ModuleCall(function, args, kwargs, torch.is_grad_enabled(), dtype))


def is_hidden(trainer: Any, module: nn.Module) -> bool:
    """Return whether some operators of a step are not visible in it, or must not be touched."""
    return is_any_compiled(module) or type(trainer.strategy).__name__ not in STRATEGIES


def why_not(trainer: Any, module: nn.Module) -> str:
    """Return why a hidden step cannot be counted from its shapes; empty if it can."""
    if not trainer.is_global_zero:
        return "rank 0 counts"
    if is_any_compiled(module) and not hasattr(torch.compiler, "set_stance"):
        return "this version of torch cannot run compiled code uncompiled: use torch 2.6 or newer"
    if plain.stored(trainer.strategy, "_tensor_parallel_size") not in (None, 1):
        return "with tensor parallelism, each rank computes only a part of each module"
    return ""
