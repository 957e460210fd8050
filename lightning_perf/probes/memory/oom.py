"""Recognize out-of-memory errors and describe them. Nothing here allocates on the device."""

import inspect
import re
import sys
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal

import torch

from lightning_perf import interrupts
from lightning_perf.probes import plain
from lightning_perf.probes.atomic_reads import live_objects
from lightning_perf.probes.model.module_walk import named_buffers, named_parameters, states_of
from lightning_perf.probes.sampled_steps.code_lines import USER, owner_of, short_place
from lightning_perf.records import LiveTensor, OutOfMemory

from .storages import Key, Storage, storages_of

Where = Literal["device", "host", "worker", "shm"]

# Messages of torch and of drivers, for errors that are not torch.OutOfMemoryError.
_DEVICE_SIGNS = ("CUDA out of memory", "HIP out of memory", "XPU out of memory", "MPS backend out of memory",
                 "CUDA error: out of memory", "CUDA driver error: out of memory", "Cuda failure 'out of memory'",
                 "Cuda failure 2 'out of memory'", "CUBLAS_STATUS_ALLOC_FAILED",
                 "CUDNN_STATUS_ALLOC_FAILED")  # fmt: skip
_HOST_SIGNS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
               "Cannot allocate memory")  # fmt: skip
_WORKER_KILLED = re.compile(r"DataLoader worker \(pid.*\) is killed by signal: Killed")
_SHM_SIGNS = ("is killed by signal: Bus error", "insufficient shared memory")
_SHM_FULL = re.compile(r"(?:/dev/shm|shared memory|</torch_\d+_).*No space left|No space left.*/dev/shm")
"""On other disks, only files are left without space, e.g. checkpoints."""
_ASKED_FOR = re.compile(r"(?:Tried to allocate|tried to allocate|you tried to allocate)\s+([\d.]+)\s*(\w+)")
_UNITS = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}

_MAX_TENSORS = 10
_MAX_CAUSES = 8
_LIMIT_S = 2.0
_OWN_REFERENCES = 3

# The innermost frame with one of these functions gives the part of the step that raised.
_PHASES_BY_FUNCTION = {
    **dict.fromkeys(("training_step", "test_step", "predict_step"), "forward"),
    **dict.fromkeys(("backward", "manual_backward"), "backward"),
    **dict.fromkeys(("optimizer_zero_grad", "optimizer_step"), "optimizer"),
    **dict.fromkeys(("batch_to_device", "transfer_batch_to_device"), "transfer"),
    "validation_step": "validation",
    "_next_data": "data_wait",
    "save_checkpoint": "checkpoint",
}


def memory_kind_of(error: BaseException) -> Where | None:
    """Return which memory ran out, from an exception or its causes; None if none did."""
    for each in _chain(error):
        text = text_of(each)
        if isinstance(each, torch.OutOfMemoryError) or _has(text, _DEVICE_SIGNS):
            return "device"
        if isinstance(each, RuntimeError) and _WORKER_KILLED.search(text):
            return "worker"
        if isinstance(each, (RuntimeError, OSError)) and (_has(text, _SHM_SIGNS) or _SHM_FULL.search(text)):
            return "shm"
        if isinstance(each, MemoryError) or (isinstance(each, (RuntimeError, OSError)) and _has(text, _HOST_SIGNS)):
            return "host"
    return None


def describe(error: BaseException, where: Where, step: int, named: dict[Key, str], device_type: str) -> OutOfMemory:
    """Return the record of an out-of-memory error; ``named`` holds names of tensors by storage."""
    shapes = shapes_of(batch_of(error))
    return OutOfMemory(
        where=where,
        step=step,
        error=f"{type(error).__name__}: {text_of(error)[:500]}".removesuffix(": "),  # Python's own has no message
        phase=phase_of(error),
        code=code_of(error),
        requested_bytes=requested_bytes(error),
        batch_shapes=shapes,
        n_samples=next((shape[0] for shape in shapes.values() if shape), None),
        largest_tensors=largest_tensors(error, named, device_type if where == "device" else "cpu"),
    )


def requested_bytes(error: BaseException) -> int | None:
    """Return the bytes that were requested, if a message names them."""
    for each in _chain(error):
        match = _ASKED_FOR.search(text_of(each))
        if match and match[2] in _UNITS:
            return int(float(match[1]) * _UNITS[match[2]])
    return None


def phase_of(error: BaseException) -> str:
    """Return the part of the step that raised, by the functions on the traceback; empty if unknown."""
    for frame in reversed(_frames(error)):
        code = frame.f_code
        if code.co_name == "step" and "/torch/optim/" in code.co_filename:
            return "optimizer"
        phase = _PHASES_BY_FUNCTION.get(code.co_name)
        if phase is not None:
            return phase
    return ""


def code_of(error: BaseException) -> str:
    """Return the user's innermost line on the traceback, e.g. ``"model.py:31 in forward"``; empty if there is none."""
    for entry in reversed(traceback.extract_tb(error.__traceback__)):
        if owner_of(entry.filename) == USER:
            return short_place(entry.filename, entry.lineno, entry.name)
    return ""


def batch_of(error: BaseException) -> Any:
    """Return the current batch, from a local variable of Lightning's innermost loop; None if there is none."""
    for frame in reversed(_frames(error)):
        name = frame.f_code.co_filename.replace("\\", "/")
        has_batch = "/loops/" in name and "batch" in frame.f_code.co_varnames
        if has_batch and (batch := _locals(frame).get("batch")) is not None:
            return batch
    return None


def shapes_of(batch: Any, place: str = "", depth: int = 4) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a batch's tensors by their place in it, e.g. ``{"0": (8, 3, 32, 32), "1": (8,)}``."""
    shape = plain.shape_of(batch)
    if shape is not None:
        return {place or "batch": shape}
    found: dict[str, tuple[int, ...]] = {}
    for key, value in (plain.items_of(batch) or ()) if depth else ():
        if type(key) in (str, int):  # converting other keys to text could run user code
            found.update(shapes_of(value, f"{place}.{key}" if place else str(key), depth - 1))
    return dict(list(found.items())[:32])


def largest_tensors(error: BaseException, named: dict[Key, str], device: str) -> tuple[LiveTensor, ...]:
    """Return the largest live tensors of a type of device (``"cuda"``, ``"cpu"`` …), each storage once.

    ``named`` holds names by storage; variables on the traceback name other tensors.
    """
    names = {**_local_names(error), **named}
    largest: dict[Key, tuple[Storage, torch.Tensor]] = {}
    until = time.perf_counter() + _LIMIT_S
    for i, value in enumerate(live_objects()):
        if i % 4096 == 0 and time.perf_counter() > until:
            break
        if not plain.is_readable_tensor(value):
            continue
        with interrupts.suppress(Exception):  # a tensor without readable storage is left out
            if plain.field(value, "device").type != device:
                continue
            for storage in storages_of(value):
                known = largest.get(storage.key)
                if known is None or plain.n_elements(value) > plain.n_elements(known[1]):
                    largest[storage.key] = (storage, value)
    ordered = sorted(largest.values(), key=lambda pair: -pair[0].n_bytes)[:_MAX_TENSORS]
    return tuple(
        LiveTensor(
            name=names.get(storage.key, ""),
            shape=tuple(int(n) for n in plain.field(tensor, "shape")),
            dtype=str(plain.field(tensor, "dtype")).removeprefix("torch."),
            n_bytes=storage.n_bytes,
        )
        for storage, tensor in ordered
    )


def names_in(module: torch.nn.Module, optimizers: list[Any]) -> dict[Key, str]:
    """Return names of parameters, gradients, buffers and optimizer states, by storage."""
    named: dict[Key, str] = {}

    def note(tensor: Any, name: str) -> None:
        if plain.has_shape(tensor):
            for storage in storages_of(tensor):
                named.setdefault(storage.key, name)

    names: dict[int, str] = {}
    for name, parameter in named_parameters(module):
        names[id(parameter)] = name
        note(parameter, name)
        note(plain.gradient_of(parameter), f"gradient of {name}")
    for name, buffer in named_buffers(module):
        note(buffer, name)
    for optimizer in optimizers:
        for parameter, state in states_of(optimizer):
            for key, value in plain.items_of(state) or ():
                note(value, f"{key} of {names.get(id(parameter), 'a parameter')}")
    return named


def _local_names(error: BaseException) -> dict[Key, str]:
    found: dict[Key, str] = {}
    for frame in _frames(error):
        for name, value in _locals(frame).items():
            if plain.is_readable_tensor(value):
                for storage in storages_of(value):
                    found[storage.key] = f"{name} in {frame.f_code.co_name}"
    return found


def _locals(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's local variables that leaves no reference to them behind.

    Before Python 3.13 ``f_locals`` of a function is a dict that the frame keeps. With the exception in it, it would be
    a reference cycle: loader workers would outlive a failed training until the garbage collector runs.
    """
    kept = frame.f_locals
    found = dict(kept)
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    # References: the frame's, the name ``kept``, the argument. With more, the user's code has it from ``locals()``.
    if is_function and type(kept) is dict and sys.getrefcount(kept) <= _OWN_REFERENCES:
        kept.clear()
    return found


def text_of(error: BaseException) -> str:
    """Return an error's message without calling ``__str__`` of a class of the user's."""
    if issubclass(type(error), OSError):
        name = OSError.filename.__get__(error)
        if name is None or type(name) in (str, bytes):
            return OSError.__str__(error)
    args = BaseException.args.__get__(error)  # type: ignore[attr-defined]
    return ", ".join(str(each) for each in args if type(each) in (str, int, float))


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if each is None:
            return
        yield each
        each = each.__cause__ or each.__context__


def _frames(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _has(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text for sign in signs)
