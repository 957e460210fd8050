"""Count a step without running it: forward and backward of a copy of its modules on fake tensors.

For steps whose operators a dispatch mode does not see or must not touch: those of compiled code, and of strategies that
shard a model. The shapes come from a real step (``call_watch``). Nothing is computed.
"""

import dis
import random
import signal
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from lightning_perf.interrupts import error_text
from lightning_perf.probes import plain
from lightning_perf.probes.replay.probe import MOST_S, SHARE
from lightning_perf.probes.replay.state import unchanged, why_not
from lightning_perf.probes.sampled_steps.code_lines import USER, owner_of
from lightning_perf.probes.sampled_steps.dense_tensors import storage_number
from lightning_perf.probes.sampled_steps.tracing import eager
from lightning_perf.probes.settings.compiler import is_any_compiled
from lightning_perf.probes.settings.machine import device_name
from lightning_perf.records import ModelProfile

from . import module_walk
from .call_watch import CallWatch
from .fake_copy import MAX_ITEMS, Copier, RefusedError
from .flops import ArithmeticCounter

LEAST_S = 3.0
"""A pass may take as long as replays, but at least this: torch's first fake operators of a kind are slow."""

_CONTAINERS = (list, dict, set, OrderedDict, defaultdict, deque, Counter)
MAX_KEPT = 1_000_000
_NEEDS_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")


def fake_profile(
    watch: CallWatch, root: nn.Module, depth: int, now_ns: Callable[[], int], until_ns: int
) -> ModelProfile:
    """Return what the watched calls of one step of ``root`` and their backward pass compute, move and save.

    The backward pass starts from all outputs that require a gradient, or from the output ``"loss"`` alone if there is
    one. Counting gives up at ``until_ns`` by ``now_ns``. ``root`` is only read.

    Raises:
        Exception: The step cannot be counted.
    """
    device = watch.device

    def clock() -> int:
        if arrived:
            raise InterruptedError("a signal arrived")
        now = now_ns()
        if now > until_ns:
            raise TimeoutError("it takes longer than a pause of the training may")
        return now

    with ExitStack() as undo:
        arrived = undo.enter_context(_unchanged_process(device))
        copier = Copier(watch.mode, device)
        model = copier(root)
        calls = [call._replace(function=copier(call.function), args=copier(call.args), kwargs=copier(call.kwargs))
                 for call in watch.calls]  # fmt: skip
        counter = ArithmeticCounter(model, depth, clock, below=watch.mode)
        given = (*module_walk.parameters(model), *module_walk.buffers(model),
                 *plain.tensors_in([call[1:3] for call in calls]))  # fmt: skip
        saved = {storage_number(tensor): 0 for tensor in given}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved.setdefault(storage_number(tensor), tensor.untyped_storage().nbytes())
            return tensor

        undo.enter_context(watch.mode)
        undo.enter_context(_RestoredGlobals())
        starts: dict[int, torch.Tensor] = {}
        of_shards = _sharded_dtype(root)
        for call in calls:
            dtype = call.autocast or of_shards
            with (
                torch.set_grad_enabled(call.has_grad),
                torch.autocast(device.type, dtype, enabled=dtype is not None),
                torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
                counter,
            ):
                output = call.function(*call.args, **call.kwargs)
            loss = dict(plain.items_of(output) or ()).get("loss")
            starts |= {id(t): t for t in plain.tensors_in(output if loss is None else loss) if t.requires_grad}
        gradients = [torch.empty_like(start) for start in starts.values()]
        counter.direction = "backward"
        if gradients:
            with counter:
                torch.autograd.backward(list(starts.values()), gradients)
    if counter.failure or not calls:
        raise RefusedError(counter.failure or "the step called no module")
    return msgspec.structs.replace(
        counter.profile(device_name(device), watch.n_samples, watch.step),
        basis="uncompiled" if is_any_compiled(root) else "shapes",
        saved_bytes=sum(saved.values()),
    )


def try_profile(
    watch: CallWatch, root: nn.Module, depth: int, now_ns: Callable[[], int], trained_ns: int
) -> tuple[ModelProfile | None, str]:
    """Return ``fake_profile``, or None and the reason, in at most the time for replays after ``trained_ns``."""
    limit_ns = round(min(MOST_S * 1e9, max(LEAST_S * 1e9, SHARE * trained_ns)))
    try:
        return fake_profile(watch, root, depth, now_ns, now_ns() + limit_ns), ""
    except Exception as error:  # noqa: BLE001 - the reason is recorded
        text = error_text(error).splitlines()[0][:200]
        if type(error).__name__ in _NEEDS_VALUES:
            text = f"forward depends on values of tensors ({type(error).__name__})"
        return None, f"the step cannot be counted from its shapes: {text}"


def _sharded_dtype(root: nn.Module) -> torch.dtype | None:
    """Return the dtype in which sharded modules compute; None if it is that of their parameters."""
    for module in module_walk.modules(root):
        state = getattr(type(module), "_get_fsdp_state", None)
        policy = plain.stored(state(module), "_mp_policy") if state else plain.stored(module, "mixed_precision")
        dtype = plain.stored(policy, "param_dtype")
        if isinstance(dtype, torch.dtype):
            return dtype
    return None


class _RestoredGlobals:
    """Context manager around user code that restores objects outside of the copies that the code names.

    Containers and objects in global variables and closures, and attributes of classes and functions, are restored at
    the end. So are variables of modules, except new ones: imports add them. Code that prints, opens a file, or assigns
    variables outside of its function is stopped.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._seen: dict[types.CodeType, bool] = {}

    def __enter__(self) -> None:
        if sys.getprofile() is not None:
            raise RefusedError("a profiler of the script is in place")
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        for value, before in self._kept.values():
            _restore(value, before)

    def _profile(self, frame: types.FrameType, event: str, what: Any) -> None:
        code = frame.f_code
        is_users = self._seen.get(code)
        if is_users is None:
            is_users = self._seen[code] = owner_of(code.co_filename) == USER
            if is_users:
                _check(code)
                self._keep_named(code.co_names, frame.f_globals)
        if not is_users:
            return
        if event == "c_call" and what in (print, open, input):
            raise RefusedError(f"forward calls {what.__name__}()")
        if event == "call":
            for name in code.co_freevars:
                self._keep(frame.f_locals.get(name))
            self._keep(type(frame.f_locals.get("self")))

    def _keep_named(self, names: tuple[str, ...], variables: Any) -> None:
        """Remember global variables of these names, their attributes of these names, and so on."""
        reached = [variables]
        seen: set[int] = set()
        for state in reached:
            values = [value for name in names if (value := state.get(name)) is not None and id(value) not in seen]
            seen.update(map(id, values))
            if len(seen) > MAX_ITEMS:
                raise RefusedError(f"forward can reach more than {MAX_ITEMS:,} objects by name")
            for value in values:
                self._keep(value)
                if not isinstance(value, types.ModuleType) or _is_users(value):
                    reached.append(vars(value) if isinstance(value, type) else plain.attributes(value))

    def _keep(self, value: Any) -> None:
        """Remember a container, or the attributes of an object or class, and the containers in it."""
        if isinstance(value, type):
            for base in value.__mro__:
                if not plain.is_library(base):
                    self._keep_state(base, dict(vars(base)))
        elif type(value) in _CONTAINERS:
            self._keep_state(value, value)
        elif isinstance(value, types.ModuleType):
            if _is_users(value):
                self._kept.setdefault(id(value), (value, dict(vars(value))))
        elif not isinstance(value, torch.Tensor):
            state = plain.attributes(value)
            self._keep_state(state, state)

    def _keep_state(self, owner: Any, state: Any) -> None:
        if id(owner) in self._kept or len(state) > MAX_KEPT:
            return
        self._kept[id(owner)] = owner, copy(state)
        if len(state) <= MAX_ITEMS:
            for each in state.values() if isinstance(state, dict) else state:
                if type(each) in _CONTAINERS:
                    self._keep_state(each, each)


def _check(code: types.CodeType) -> None:
    """Refuse code that assigns variables outside of its function."""
    for each in dis.get_instructions(code):
        is_outside = each.opname in ("STORE_DEREF", "DELETE_DEREF") and each.argval in code.co_freevars
        if is_outside or each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise RefusedError(f"{code.co_name} assigns {each.argval}, a variable outside of its function")


def _is_users(module: types.ModuleType) -> bool:
    file = plain.attributes(module).get("__file__")
    return isinstance(file, str) and owner_of(file) == USER


def _restore(value: Any, before: Any) -> None:
    if isinstance(value, (type, types.ModuleType)):
        for name in vars(value).keys() - before.keys() if isinstance(value, type) else ():
            delattr(value, name)
        for name, each in before.items():
            if vars(value).get(name) is not each:
                setattr(value, name, each)
    elif not _is_same(value, before):
        value.clear()
        (value.update if isinstance(value, (dict, set)) else value.extend)(before)


def _is_same(value: Any, before: Any) -> bool:
    pair = [[*each, *each.values()] if isinstance(each, dict) else [*each] for each in (value, before)]
    return len(pair[0]) == len(pair[1]) and all(a is b for a, b in zip(*pair, strict=True))


@contextmanager
def _defer_signals() -> Iterator[list[int]]:
    """Call signal handlers at the end: if one raises while C++ reads a tensor's device, the process ends."""
    arrived: list[int] = []
    with ExitStack() as undo:
        undo.callback(lambda: deque(map(signal.raise_signal, arrived), maxlen=0))
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                if callable(handler := signal.getsignal(number)):
                    undo.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, _: arrived.append(number))
        yield arrived


@contextmanager
def _unchanged_process(device: torch.device) -> Iterator[list[int]]:
    """Keep random number generators and hooks on all modules unchanged, run no compiled code, and defer signals."""
    if reason := why_not(device):
        raise RefusedError(reason)
    registries = [each for name, each in vars(torch_module).items()
                  if name.startswith("_global_") and isinstance(each, dict)]  # fmt: skip
    with ExitStack() as undo:
        arrived = undo.enter_context(_defer_signals())
        undo.callback(random.setstate, random.getstate())
        undo.callback(np.random.set_state, np.random.get_state())
        undo.enter_context(unchanged(device))
        if "torch._dynamo" in sys.modules:
            undo.enter_context(eager())
        for registry in registries:
            undo.callback(registry.update, dict(registry))
            registry.clear()
        yield arrived
