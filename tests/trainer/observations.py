"""Observe a run: the Trainer and all that it refers to, the process, and the files written."""

from __future__ import annotations

import atexit
import functools
import gc
import hashlib
import logging
import os
import pickle
import random
import re
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch
import numpy as np
import torch

Observed = dict[str, Any]

_WALKED = ("lightning.", "pytorch_lightning.", "torch.", "torchmetrics.", "trainer.", "collections", "__main__")
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, Path)
_CALLABLES = (types.FunctionType, types.BuiltinFunctionType, types.MethodWrapperType, type)


def digest(data: bytes) -> str:
    """Return a short hash."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return type, shape and a hash of a tensor's bytes."""
    kind = f"{type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)} grad={tensor.requires_grad}"
    try:
        plain = tensor.detach().as_subclass(torch.Tensor)
        plain = plain.to_dense() if plain.is_sparse else plain
        return f"{kind} {digest(plain.contiguous().flatten().view(torch.uint8).numpy().tobytes())}"
    except Exception:  # noqa: BLE001 - uninitialized, nested, without storage
        return kind


def random_streams() -> dict[str, str]:
    """Return a hash of the state of each global random generator."""
    return {
        "torch": digest(torch.get_rng_state().numpy().tobytes()),
        "numpy": _numpy_stream(),
        "python": digest(pickle.dumps(random.getstate())),
    }


def _numpy_stream() -> str:
    name, keys, *rest = np.random.get_state()
    return digest(repr((name, *rest)).encode() + keys.tobytes())  # repr of the keys takes as long as a training step


class _Records:
    """Notes each step's loss and the random streams after it."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        loss = tensor_digest(loss) if isinstance(loss, torch.Tensor) else repr(loss)
        state = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), trainer.global_step)
        self.notes.append(("step", loss, digest(repr(random_streams()).encode()), *state))

    def __deepcopy__(self, memo: Any) -> Any:
        return type(self)(list(self.notes))


class StepRecorder(_Records, lightning.pytorch.Callback):
    """The recorder for ``lightning.pytorch``."""


def step_recorder(notes: list[Any], trainer_class: type) -> Any:
    """Return the callback that records steps, of the Trainer's namespace."""
    if not any(base.__module__.startswith("pytorch_lightning.") for base in trainer_class.__mro__):
        return StepRecorder(notes)
    import pytorch_lightning

    return type("StepRecorder", (_Records, pytorch_lightning.Callback), {})(notes)


# -- objects ------------------------------------------------------------


def is_ours(value: Any) -> bool:
    """Whether an object is of the package under test."""
    return type(value).__module__.startswith("lightning_perf")


def _is_doctor(value: Any) -> bool:
    return is_ours(value) and any(base.__name__ == "DoctorHooks" for base in type(value).__mro__)


def describe(value: Any) -> str:
    """Return what kind of object this is, without what differs from process to process."""
    if isinstance(value, functools.partial):
        return f"partial {describe(value.func)}"
    if isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
        return f"function {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Walk:
    """Everything that can be reached from some objects, by path."""

    def __init__(self) -> None:
        self.found: Observed = {}
        self._seen: dict[int, Any] = {}

    def walk(self, path: str, value: Any) -> None:
        todo = [(path, value)]
        while todo:
            path, value = todo.pop()
            if isinstance(value, _ATOMS):
                self.found[path] = repr(value)
                continue
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                self.found[path] = tensor_digest(value)
                todo += [
                    (f"{path}.{name}", getattr(value, name))
                    for name in ("grad", "_backward_hooks")
                    if value.is_leaf or name != "grad"
                ]
                todo += [(f"{path}.{name}", one) for name, one in vars(value).items()]
                hooks = getattr(value, "_post_accumulate_grad_hooks", None)
                todo.append((f"{path}._post_accumulate_grad_hooks", hooks))
                continue
            self.found[path] = self._kind(value)
            todo += [(f"{path}{part}", one) for part, one in self._parts(value)]

    def _kind(self, value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"array {value.dtype} {value.shape} {digest(np.ascontiguousarray(value).tobytes())}"
        return describe(value)

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections", "types"):
            pairs = [(key, one) for key, one in value.items() if not _is_doctor(one)]
            for index, (key, one) in enumerate(pairs):
                yield f"[{key!r}]" if isinstance(key, str) else f"[{index} {type(key).__name__}]", one
        elif isinstance(value, (list, tuple)):
            for index, one in enumerate(one for one in value if not _is_doctor(one)):
                yield f"[{index}]", one
        elif isinstance(value, (set, frozenset)):
            yield "{}", repr(sorted(map(describe, value)))
        elif isinstance(value, types.MethodType):
            yield ".__self__", value.__self__
        elif isinstance(value, functools.partial):
            yield ".args", (value.func, value.args, value.keywords)
        elif isinstance(value, types.FunctionType):
            yield ".__closure__", [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        is_of_tests = type(value).__name__ in ("Run", "StepRecorder")
        is_walked = type(value).__module__.startswith(_WALKED) and not isinstance(value, (type, types.ModuleType))
        if is_walked and not is_of_tests:
            for name, one in vars(value).items() if hasattr(value, "__dict__") else ():
                yield f".{name}", one


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises if empty
    except ValueError:
        return False
    return True


def observe_trainers(trainers: list[Any]) -> Observed:
    """Return everything that can be reached from Trainers: attributes' names, kinds and plain values, tensors' bits."""
    walk = Walk()
    for index, trainer in enumerate(trainers):
        walk.walk(f"trainer{index}", trainer)
    return walk.found


# -- the process ------------------------------------------------------------


def patched_owners() -> Iterator[tuple[str, Any]]:
    """Yield modules and classes whose functions someone could have replaced."""
    prefixes = ("torch", "lightning.", "pytorch_lightning.", "torchmetrics", "numpy.random", "tqdm", "rich.")
    exact = (
        "random",
        "gc",
        "builtins",
        "time",
        "os",
        "threading",
        "signal",
        "sys",
        "warnings",
        "logging",
        "copy",
        "multiprocessing.popen_fork",
        "multiprocessing.process",
        "multiprocessing.queues",
        "weakref",
        "pickle",
    )
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if not (name.startswith(prefixes) or name in exact) or not isinstance(module, types.ModuleType):
            continue
        yield name, module
        for key, value in list(vars(module).items()):
            if (
                issubclass(type(value), type)
                and id(value) not in seen
                and str(value.__module__).startswith((*prefixes, *exact))
            ):
                seen.add(id(value))
                yield f"{name}.{key}", value


Functions = list[tuple[str, Any, int, dict[str, Any]]]
"""Modules and classes with how many attributes they have and the functions among them."""


def functions_by_owner() -> Functions:
    """Return all functions of modules and classes, to compare with later."""
    kinds = (*_CALLABLES, staticmethod, classmethod, property, types.MethodType)
    return [
        (name, owner, len(vars(owner)), {key: value for key, value in vars(owner).items() if isinstance(value, kinds)})
        for name, owner in patched_owners()
    ]


def replaced_functions(before: Functions) -> list[str]:
    """Return the functions of modules and classes that are not what they were."""
    found = []
    for name, owner, n_attributes, functions in before:
        current = vars(owner)
        found += [f"{name}.{key}" for key, value in functions.items() if current.get(key) is not value]
        if isinstance(owner, type) and len(current) != n_attributes:
            added = [key for key, value in current.items() if isinstance(value, _CALLABLES) and key not in functions]
            found += [f"{name}.{key} added" for key in added]
    return sorted(found)


def _denormals_are_kept() -> bool:
    return bool((torch.tensor([1e-40]) * 1.0).item())


_innermost_saved_tensors_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
"""Not in torch 2.4."""


def _torch_state() -> Observed:
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    module_hooks = torch.nn.modules.module
    backends = torch.backends
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu"))),
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "backends": (backends.cudnn.benchmark, backends.cudnn.deterministic, backends.mkldnn.enabled),
        "denormals": _denormals_are_kept(),
        "saved_tensors_hooks": (
            torch._C._autograd._saved_tensors_hooks_is_enabled(),
            torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
            describe(_innermost_saved_tensors_hooks(True)),
        ),
        "multithreading": torch.autograd.is_multithreading_enabled(),
        "dispatch_modes": [describe(mode) for mode in _get_current_dispatch_mode_stack()],
        "function_modes": [describe(mode) for mode in _get_current_function_mode_stack()],
        "profiler": torch.autograd._profiler_enabled(),
        "module_hooks": [
            (name, len(hooks)) for name, hooks in vars(module_hooks).items() if name.startswith("_global_") and hooks
        ],
        "optimizer_hooks": [
            len(getattr(sys.modules["torch.optim.optimizer"], name))
            for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
        ],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "distributed": torch.distributed.is_available() and torch.distributed.is_initialized(),
    }


def _loggers() -> Observed:
    names = [name for name in logging.root.manager.loggerDict if not name.startswith(("lightning_perf", "matplotlib"))]
    configured = {}
    for name in ("", *names):
        one = logging.getLogger(name) if isinstance(logging.root.manager.loggerDict.get(name), logging.Logger) else None
        one = logging.root if name == "" else one
        if one is not None and (one.level or one.handlers or one.filters or one.disabled or not one.propagate):
            kinds = sorted(map(describe, one.handlers)), sorted(map(describe, one.filters))
            configured[name] = (one.level, one.disabled, one.propagate, *kinds)
    return {"loggers": configured, "disabled": logging.root.manager.disable}


def _open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if not target.startswith("/proc/"):
            found.append(re.sub(r"\d+", "0", target))
    return sorted(found)


def _processes() -> list[str]:
    import psutil

    return sorted(child.name() for child in psutil.Process().children(recursive=True))


def _handlers() -> dict[str, str]:
    known = sorted(signal.valid_signals())
    handlers = {signal.Signals(n).name if n in set(signal.Signals) else str(n): signal.getsignal(n) for n in known}
    return {name: str(h) if isinstance(h, int) else describe(h) for name, h in handlers.items() if h is not None}


# The first sends what is left in a queue that was just closed. The second references the training thread's frames for
# the moment in which it reads a stack; a run that calls none of PerfDoctor's last hooks is restored when it lets go.
_ENDING_THREADS = ("QueueFeederThread", "lightning-perf host lines")


def observe_process() -> Observed:
    """Return the state of this process."""
    for thread in threading.enumerate():
        if thread.name.startswith(_ENDING_THREADS):
            thread.join(2.0)
    hooks = (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.breakpointhook)
    return {
        "random": random_streams(),
        "torch": _torch_state(),
        "threads": sorted(re.sub(r"\d+", "0", thread.name) for thread in threading.enumerate()),
        "processes": _processes(),
        "signals": _handlers(),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), sorted(map(describe, gc.callbacks))),
        "trace": (sys.gettrace() is not None, sys.getprofile() is not None, threading.gettrace() is not None),
        "warnings": [repr(entry) for entry in warnings.filters],
        "environment": dict(os.environ),
        "logging": _loggers(),
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "importers": (list(map(describe, sys.meta_path)), len(sys.path_hooks)),
        "hooks": [describe(hook) for hook in hooks],
        "streams": [describe(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
        "exit_functions": atexit._ncallbacks(),
        "files_open": _open_files(),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval(), os.nice(0), sorted(os.sched_getaffinity(0))),
    }
