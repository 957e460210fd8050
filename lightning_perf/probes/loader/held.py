"""What a loader holds, read without running code of the user's."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_perf.probes import plain
from lightning_perf.probes.code_lines import USER, owner_of

_PARTS = ("dataset", "collate_fn", "sampler", "batch_sampler", "worker_init_fn", "generator")
_MAX_VALUES = 20_000
_MAX_PER_TYPE = 256
"""Items of one type that are read of each container; items of every type are."""
_DATA = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, types.ModuleType, type)
_OPAQUE = (logging.Logger, weakref.ref, io.BytesIO, io.StringIO)
"""Not followed: what these write or hold does not leave the child's memory."""
_SHARING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_KNOWN_MODULES = frozenset(
    (
        "_abc", "_collections", "_functools", "_operator", "_random", "_struct", "abc", "albumentations", "array",
        "builtins", "collections", "cv2", "datetime", "decimal", "enum", "fractions", "functools", "itertools",
        "lightning", "numpy", "operator", "pandas", "pathlib", "PIL", "pyarrow", "pytorch_lightning", "random", "re",
        "scipy", "sentencepiece", "tokenizers", "torch", "torchaudio", "torchvision", "types", "typing", "uuid",
        "zoneinfo",
    )
)  # fmt: skip
"""Packages whose types in C keep data in memory of their own; those listed below are exceptions."""
_SHARING_MODULES = ("torch._C._distributed", "torch.multiprocessing", "pyarrow._")


def refuses_held(loader: Any) -> str | None:
    """Return why a copy of what a loader holds would share state with the training; None where nothing does.

    A lock stays locked if the probe ends while it holds it; what is sent through a connection, written to a file or to
    shared memory arrives in the training. A type in C that is not known may be any of these.
    """
    shared = _writable_shared_memory()
    for part, value in _walk([(name, plain.stored(loader, name)) for name in _PARTS]):
        reason = _refuses(value, shared)
        if reason is not None:
            return f"the {part} holds {reason}"
    return None


def holds_device_tensors(dataset: Any) -> bool:
    """Return whether a dataset holds a tensor that is not in the host's memory."""
    tensors = (value for _, value in _walk([("dataset", dataset)]) if plain.is_readable_tensor(value))
    return any(plain.field(tensor, "device").type != "cpu" for tensor in tensors)


def _walk(roots: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    waiting = deque(roots)
    seen: set[int] = set()
    kept: list[Any] = []  # an id is another object's once the object is gone
    while waiting and len(seen) < _MAX_VALUES:
        part, value = waiting.popleft()
        if type(value) in _DATA or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        yield part, value
        waiting.extend((part, inner) for inner in _inside(value))


def _inside(value: Any) -> Iterator[Any]:
    """Yield what a value holds, as far as that can be read."""
    kind = type(value)
    if kind is np.ndarray and value.dtype.hasobject and value.dtype.names is None:
        yield from _some(value.flat[:_MAX_PER_TYPE])
    if kind in _DATA or plain.is_a(value, (*_OPAQUE, np.ndarray, np.generic)) or plain.is_readable_tensor(value):
        return
    items = plain.items_of(value)
    if items is not None:
        yield from _some([inner for pair in items for inner in pair] if plain.is_a(value, dict) else _seconds(items))
    for container in (set, frozenset, deque):
        if plain.is_a(value, container):
            yield from _some(container.__iter__(value))
    if kind is functools.partial:
        yield from (value.func, value.args, value.keywords)
    elif kind is types.MethodType:
        yield from (value.__self__, value.__func__)
    elif kind is types.FunctionType:
        yield from _inside_function(value)
    elif kind in (staticmethod, classmethod):
        yield value.__func__
    elif kind is property:
        yield from (value.fget, value.fset)
    elif kind is types.CellType:
        yield from _contents(value)
    else:
        yield from plain.attributes(value).values()
        yield from _of_class(value)


def _of_class(value: Any) -> Iterator[Any]:
    """Yield the slots of an object, and what classes of the user's define for it."""
    for base in type.__dict__["__mro__"].__get__(type(value)):
        own = type.__dict__["__dict__"].__get__(base)
        is_users = _is_users(base)
        for defined in own.values():
            if type(defined) is types.MemberDescriptorType and not _is_native(base):
                try:
                    yield defined.__get__(value)
                except AttributeError:
                    continue
            elif is_users:
                yield defined


def _inside_function(function: types.FunctionType) -> Iterator[Any]:
    """Yield defaults and closure of a function, and the globals that code of the user's names."""
    yield function.__defaults__
    yield function.__kwdefaults__
    yield from function.__closure__ or ()
    if owner_of(function.__code__.co_filename) != USER:
        return
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if type(each) is types.CodeType]
        yield from (dict.get(function.__globals__, name) for name in code.co_names)


def _contents(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # it is empty
        return


def _seconds(items: list[tuple[Any, Any]]) -> Iterator[Any]:
    return (item for _, item in items)


def _some(items: Any) -> Iterator[Any]:
    """Yield the first items of each type that may hold something."""
    counts: dict[type, int] = {}
    for item in items:
        kind = type(item)
        if kind in _DATA:
            continue
        counts[kind] = n = counts.get(kind, 0) + 1
        if n <= _MAX_PER_TYPE:
            yield item


def _refuses(value: Any, shared: list[range]) -> str | None:
    """Return what a value is, where a copy of it shares state with the original."""
    kind = type(value)
    address = _address_of(value)
    if address is not None:
        is_shared = any(address in each for each in shared)
        return "data in writable shared memory or a writable memory map" if is_shared else None
    if plain.is_a(value, _OPAQUE):
        return None
    for base in type.__dict__["__mro__"].__get__(kind):
        module = _module_of(base)
        is_multiprocessings = module.partition(".")[0] in ("multiprocessing", "subprocess", "socket")
        if base in _SHARING or is_multiprocessings or (_is_native(base) and not _is_known(module)):
            return f"a {module}.{kind.__qualname__}, which it may share with the training".replace("builtins.", "")
    return None


def _address_of(value: Any) -> int | None:
    """Return where the elements of a tensor or array lie; None for anything else."""
    if plain.is_a(value, np.ndarray):
        return int(np.ndarray.__array_interface__.__get__(value)["data"][0])
    if plain.is_readable_tensor(value):
        with contextlib.suppress(RuntimeError, NotImplementedError), plain.without_overrides():
            return int(torch._C.TensorBase.data_ptr(value))
    return None


def _writable_shared_memory() -> list[range]:
    """Return the addresses at which writing reaches other processes or a file."""
    ranges = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            span, permissions = line.split(maxsplit=2)[:2]
            if permissions[1] == "w" and permissions[3] == "s":
                ranges.append(range(*(int(each, 16) for each in span.split("-"))))
    return ranges


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN_MODULES and not module.startswith(_SHARING_MODULES)


_SLOTS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)


@functools.cache
def _is_native(kind: type) -> bool:
    """Return whether a class is written in C: Python classes define functions instead of these."""
    for name, value in type.__dict__["__dict__"].__get__(kind).items():
        is_slot = type(value) in _SLOTS
        is_slot |= type(value) is types.GetSetDescriptorType and name not in ("__dict__", "__weakref__")
        if is_slot and value.__objclass__ is kind:
            return True
    return False


@functools.cache
def _is_users(kind: type) -> bool:
    module = sys.modules.get(_module_of(kind))
    file = plain.attributes(module).get("__file__") if module is not None else None
    return _module_of(kind) == "__main__" or (type(file) is str and owner_of(file) == USER)


def _module_of(kind: type) -> str:
    """Return the name of a class's module; a class in C has it in its name only."""
    return str(type.__dict__["__module__"].__get__(kind))
