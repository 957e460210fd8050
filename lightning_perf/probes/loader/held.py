"""Inspect the objects that a loader holds, without running user code."""

import contextlib
import functools
import gc
import io
import logging
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lightning_perf import interrupts
from lightning_perf.probes import plain

from .native_code import (
    NativeCodeSearch,
    bases_of,
    constructs_unnamed,
    defined_in,
    function_references,
    is_copied_without_init,
    is_interpreter_type,
    is_known_module,
    is_native,
    is_user_class,
    module_of,
)

_PARTS = ("dataset", "collate_fn", "sampler", "batch_sampler", "worker_init_fn", "generator")
_MAX_VALUES = 20_000
_MAX_PER_TYPE = 256
"""Items read per type and container."""
_DATA = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice)
_PLAIN_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_OPAQUE = (logging.Logger, weakref.ref, io.BytesIO, io.StringIO)
"""Not inspected further: what these write or hold does not leave the child's memory."""
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_NOT_FOLLOWED = (*_OPAQUE, *_DESCRIPTORS, np.ndarray, np.generic, types.ModuleType)
"""Names in code show what is used of a module; descriptors in C hold nothing but their class."""
_SHARING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_SHARING_MODULES = ("multiprocessing", "subprocess", "socket", "ctypes")


def why_state_is_shared(loader: Any) -> str | None:
    """Return why a copy of a loader would share state with the training; None if it would not.

    A lock stays locked if the probe ends while it holds it; data sent through a connection, or written to a file or
    shared memory, reaches the training. An unknown C type may be any of these, and unknown C code may open them by
    name. So both the objects held and those that the user's code names are searched.
    """
    shared, search = _writable_shared_memory(), NativeCodeSearch()
    part, called = _PARTS[0], None
    try:
        for part, value in _walk([(name, plain.stored(loader, name)) for name in _PARTS]):
            if (reason := _why_shared(value, shared)) is not None:
                return f"the {part} holds {reason}, which it may share with the training"
            if called is None and (reason := search.refuses(value)) is not None:
                called = f"the {part} calls {reason}, which may share something with the training"
    except _TooMuchError:
        called = called or f"the {part} holds more than {_MAX_VALUES:,} objects, too many to look through"
    return called


def holds_device_tensors(dataset: Any) -> bool:
    """Return whether a dataset holds a tensor that is not in the host's memory."""
    tensors = (value for _, value in _walk([("dataset", dataset)]) if plain.is_readable_tensor(value))
    with contextlib.suppress(_TooMuchError):
        return any(plain.field(tensor, "device").type != "cpu" for tensor in tensors)
    return False


class _TooMuchError(Exception):
    """There are more objects than the search visits; items of plain containers may be skipped."""


def _walk(roots: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the objects held, and plain containers last, since these may be millions of one kind."""
    objects, containers = deque(roots), deque[tuple[str, Any]]()
    existing = deque[tuple[str, Any]]()  # classes whose __init__ runs only if some code makes further instances
    makes_instances = False
    seen: set[int] = set()
    kept: list[Any] = []  # ids are reused once an object is gone
    while objects or containers or (makes_instances and existing):
        if len(seen) >= _MAX_VALUES:
            if objects or (makes_instances and existing):
                raise _TooMuchError
            return
        part, value = (objects or containers or existing).popleft()
        if type(value) in _DATA or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if type(value) is _ExistingClass:
            existing.append((part, value.kind))
            yield part, value.kind
        else:
            makes_instances = makes_instances or constructs_unnamed(value)
            yield part, value
        for inner in _references(value):
            (containers if type(inner) in _PLAIN_CONTAINERS else objects).append((part, inner))


class _ExistingClass:
    """The class of a dataset that exists: all of its code can run in a copy, except ``__init__``."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


@functools.cache  # one object per class, because visited objects are known by id
def _class_of(kind: type) -> _ExistingClass | type:
    """Return a dataset's class, without its ``__init__`` where no copy runs that."""
    return _ExistingClass(kind) if is_copied_without_init(kind) else kind


def _references(value: Any) -> Iterator[Any]:
    """Yield the objects that a value refers to, as far as they can be read without running code."""
    kind = type(value)
    if kind is np.ndarray and value.dtype.hasobject and value.dtype.names is None:
        yield from _first_of_each_type(value.flat[:_MAX_PER_TYPE])
    if kind in _DATA or plain.is_a(value, _NOT_FOLLOWED) or plain.is_readable_tensor(value):
        return
    if plain.is_a(value, dict):
        yield from _first_of_each_type([*dict.keys(value), *dict.values(value)])  # copied: other threads may change it
    for container in (list, tuple, set, frozenset, deque):
        if plain.is_a(value, container):
            yield from _first_of_each_type(container.__iter__(value))
    if kind in _PLAIN_CONTAINERS:
        return
    is_pythons = (kind is not type and is_interpreter_type(kind)) or module_of(kind) in ("functools", "itertools")
    if kind is types.FunctionType:
        yield from function_references(value)
    elif kind in (staticmethod, classmethod):
        yield value.__func__  # their other referents are annotations
    elif is_pythons or plain.is_a(value, functools.partial):
        yield from gc.get_referents(value)  # e.g. of a partial, a bound method, a property, a cell or an iterator
    elif plain.is_a(value, type):
        yield from _class_references(value)
    elif kind is _ExistingClass:
        yield from _class_references(value.kind, without="__init__")
    else:
        yield from plain.attributes(value).values()
        yield _class_of(kind) if plain.is_a(value, Dataset) else kind  # type: ignore[arg-type]
        yield from _slot_values(value)


def _class_references(kind: type, without: str = "") -> Iterator[Any]:
    """Yield the values that a class and its bases define, as far as they are the user's."""
    for base in bases_of(kind):
        if is_user_class(base):
            yield from (value for name, value in defined_in(base) if name != without)


def _slot_values(value: Any) -> Iterator[Any]:
    for base in bases_of(type(value)):
        for _, defined in () if is_native(base) else defined_in(base):
            if type(defined) is types.MemberDescriptorType:
                with contextlib.suppress(AttributeError):
                    yield defined.__get__(value)


def _first_of_each_type(items: Any) -> Iterator[Any]:
    """Yield the first items of each type that can refer to other objects."""
    counts: Counter[type] = Counter()
    for item in items:
        kind = type(item)
        if kind not in _DATA:
            counts[kind] += 1
            if counts[kind] <= _MAX_PER_TYPE:
                yield item


def _why_shared(value: Any, shared: list[range]) -> str | None:
    """Return the name of a value whose copy shares state with the original; None for other values."""
    kind = type(value)
    address = _address_of(value)
    if address is not None:
        is_shared = any(address in each for each in shared)
        return "data in writable shared memory or a writable memory map" if is_shared else None
    if plain.is_a(value, _OPAQUE):
        return None
    for base in bases_of(kind):
        module = module_of(base)
        is_unknown = is_native(base) and not is_interpreter_type(base) and not is_known_module(module)
        if base in _SHARING or module.partition(".")[0] in _SHARING_MODULES or is_unknown:
            return f"a {module}.{kind.__qualname__}".replace("builtins.", "")
    return None


def _address_of(value: Any) -> int | None:
    """Return the address of a tensor's or array's elements; None for anything else."""
    if plain.is_a(value, np.ndarray):
        return int(np.ndarray.__array_interface__.__get__(value)["data"][0])
    if plain.is_readable_tensor(value):
        with interrupts.suppress(RuntimeError, NotImplementedError), plain.without_overrides():
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
