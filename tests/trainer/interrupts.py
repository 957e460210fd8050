"""Raise at one line of the package, as a signal handler may; compare the process before and after."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.autograd import graph
from torch.nn.modules import module as torch_module
from torch.utils import _python_dispatch

import lightning_perf
from lightning_perf import PerfDoctor

from .conftest import is_ours

PACKAGE = str(Path(lightning_perf.__file__).parent)

Line = tuple[str, int]
"""A file, relative to the package, and a line number."""

_MODULE_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_TENSOR_METHODS = ("tolist", "numpy", "cpu")


class Interrupted(SystemExit):
    """What the planted signal handler raises."""


class Preempted(RuntimeError):
    """What the handler of a real signal raises, of the type that torch's handler raises."""


def interrupt(why: str) -> None:
    """Raise ``SystemExit`` as a signal handler may."""
    raise Interrupted(why)


def preempt(why: str) -> None:
    """Raise an ``Exception`` in the handler of a real signal, which is reset before."""
    before = signal.getsignal(signal.SIGUSR2)

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGUSR2, before)
        raise Preempted(why)

    signal.signal(signal.SIGUSR2, handler)
    signal.raise_signal(signal.SIGUSR2)


class LineTrace:
    """Counts the package's lines run by this thread, and raises at one of them.

    Args:
        at: The line to raise at; None to only count.
        occurrence: How often the line has run when it raises, 1 for the first time.
        raise_there: Raises, given a message.
    """

    def __init__(
        self, at: Line | None = None, occurrence: int = 1, raise_there: Callable[[str], None] = interrupt
    ) -> None:
        self.seen: Counter[Line] = Counter()
        self.has_raised = False
        self._at, self._occurrence, self._raise = at, occurrence, raise_there
        # Python 3.11 holds no reference of its own to a trace function that it is about to call: one that raises inside
        # a callback of the garbage collector is dropped, and must not be freed by that.
        self._call_tracer, self._line_tracer = self._on_call, self._on_line

    def run(self, function: Callable[[], Any]) -> BaseException | None:
        """Run a function; return what it raised."""
        before = sys.gettrace()
        sys.settrace(self._call_tracer)
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - the caller judges it
            _drop_frames(error)
            return error
        finally:
            sys.settrace(before)
        return None

    def _on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line_tracer if name.startswith(PACKAGE) else None

    def _on_line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno)
            self.seen[line] += 1
            if line == self._at and self.seen[line] == self._occurrence:
                self.has_raised = True
                self._raise(f"planted at {line[0]}:{line[1]}")
        return self._line_tracer


def _drop_frames(error: BaseException | None) -> None:
    """Let go of the frames that an error and what it came from hold: a run ends when its frames do, at the latest."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def process_state() -> dict[str, Any]:
    """Return what a training must leave in the process as it was."""
    top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "dispatch flag": _python_dispatch.is_in_torch_dispatch_mode(),
        "function modes": torch._C._len_torch_function_stack(),
        "saved tensor hooks": top_hooks(True),
        "tensor methods": {name: vars(torch.Tensor).get(name) for name in _TENSOR_METHODS},
        "tensor printing": torch._tensor_str._str,
        "disabling of saved tensor hooks": graph.disable_saved_tensors_hooks,
        "global module hooks": {
            name: list(value.values()) for name, value in vars(torch_module).items() if name.endswith("_hooks")
        },
        "profiler": torch.autograd._profiler_enabled(),
        "signal handlers": {one: signal.getsignal(one) for one in signal.valid_signals()},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "threads": {one for one in threading.enumerate() if one.name.startswith("lightning-perf")},
        "garbage collection": (list(gc.callbacks), gc.isenabled(), sys.unraisablehook),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "environment": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        "trace of compilations": _compile_callbacks(),
    }


def training_state(trainer: Any, module: Any) -> dict[str, Any]:
    """Return what is attached to a Trainer, its parts, its module and its optimizers."""
    epoch_loop = trainer.fit_loop.epoch_loop
    owners = [
        trainer,
        trainer.profiler,
        trainer.strategy,
        trainer._logger_connector,
        trainer.fit_loop,
        epoch_loop,
        epoch_loop.val_loop,
        epoch_loop._results,
        epoch_loop.val_loop._results,
        *trainer.loggers,
        *trainer.callbacks,
        module,
    ]
    attached = {
        f"{type(owner).__name__}.{name}"
        for owner in owners
        if not isinstance(owner, PerfDoctor)
        for name, value in vars(owner).items()
        if is_ours(value) or (callable(value) and name in ("profile", "start", "stop"))
    }
    hooks = {
        f"{path}.{name}": list(vars(part)[name].values())
        for path, part in module.named_modules()
        for name in _MODULE_HOOKS
        if vars(part)[name]
    }
    optimizers = [
        list(getattr(optimizer, name).values())
        for optimizer in trainer.optimizers
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    ]
    return {"attached": attached, "module hooks": hooks, "optimizer hooks": [one for one in optimizers if one]}


def _compile_callbacks() -> Any:
    dynamo = sys.modules.get("torch._dynamo.callback")
    handler = getattr(dynamo, "callback_handler", None)
    return handler and (list(handler.start_callbacks), list(handler.end_callbacks))
