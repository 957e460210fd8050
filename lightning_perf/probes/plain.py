"""Read objects of the user's script without running its code.

Attributes, items, lengths and comparisons of such objects may be computed, draw random numbers, or be counted. These
functions read plain torch and numpy data, built-in containers (through methods of the built-in type, also for
subclasses) and instance attributes. Everything else is unknown.
"""

import types
from collections import UserDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_perf.interrupts import raise_if_from_signal

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_BASE = torch._C.TensorBase
_LIBRARIES = ("builtins", "pathlib", "torch", "lightning", "pytorch_lightning", "lightning_fabric", "numpy")
_MISSING = object()
_MAX_DEPTH = 6

_SCALARS = (float, int, bool, str, bytes, type(None))

MAX_VISITED = 1000
"""Most objects visited in a search of a batch or an output, which may hold millions of Python numbers."""


without_overrides: Callable[[], Any] = torch._C.DisableTorchFunction
"""Context manager in which neither tensor subclasses nor modes of the user see what is done with tensors."""


def is_a(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Return whether a value's type is or derives from ``kind``; ``isinstance`` would also read ``__class__``."""
    return issubclass(type(value), kind)


def is_plain_tensor(value: Any) -> bool:
    """Return whether a value is a tensor or parameter of torch's own class."""
    return type(value) in _PLAIN_TENSORS


def is_readable_tensor(value: Any) -> bool:
    """Return whether a value is a tensor that ``field`` can read: plain, torch's own, or without its own dispatch."""
    kind = type(value)
    if kind in _PLAIN_TENSORS:
        return True
    if not issubclass(kind, torch.Tensor):
        return False
    return is_library(kind) or class_attribute(kind, "__torch_dispatch__") is vars(torch.Tensor)["__torch_dispatch__"]


def field(tensor: torch.Tensor, name: str) -> Any:
    """Return an attribute of a readable tensor as torch's base class defines it."""
    with without_overrides():
        return getattr(_BASE, name).__get__(tensor)


def storage_address(tensor: torch.Tensor) -> int:
    """Return where a tensor's storage is; 0 for one without."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError) as error:  # a subclass without storage
        raise_if_from_signal(error)
        return 0


def n_elements(tensor: torch.Tensor) -> int:
    """Return how many elements a readable tensor has."""
    with without_overrides():
        return _BASE.numel(tensor)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a tensor; None without one, and if only user code could return it."""
    gradient: torch.Tensor | None = field(parameter, "grad") if is_readable_tensor(parameter) else None
    return gradient


def is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether a parameter or buffer has no shape yet."""
    return issubclass(type(tensor), UninitializedTensorMixin)


def has_shape(tensor: Any) -> bool:
    """Return whether a value is a readable tensor that is not lazy."""
    return is_readable_tensor(tensor) and not is_lazy(tensor)


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a plain tensor or numpy array; None for anything else."""
    try:
        if type(value) in _PLAIN_TENSORS:
            with without_overrides():
                return tuple(int(size) for size in value.shape)
        if type(value) is np.ndarray:
            return tuple(value.shape)
    except RuntimeError as error:  # nested tensors have no shape
        raise_if_from_signal(error)
    return None


def items_of(value: Any, most: int | None = None) -> list[tuple[Any, Any]] | None:
    """Return the items of a list, tuple, dict, ``UserDict`` or dataclass with their keys; None for anything else.

    ``most`` limits their number; None for all.
    """
    kind = type(value)
    if issubclass(kind, dict):
        return list(islice(dict.items(value), most))
    if issubclass(kind, tuple):
        return list(enumerate(islice(tuple.__iter__(value), most)))
    if issubclass(kind, list):
        return list(enumerate(islice(list.__iter__(value), most)))
    if issubclass(kind, UserDict):
        inner = attributes(value).get("data")
        return items_of(inner, most) if is_a(inner, dict) else None
    if has_class_attribute(kind, "__dataclass_fields__"):
        return list(islice(attributes(value).items(), most))
    return None


def item_of(value: Any, key: Any) -> Any:
    """Return the item that ``items_of`` lists under ``key``.

    Raises:
        LookupError: There is none.
    """
    kind = type(value)
    if issubclass(kind, dict):
        found = dict.get(value, key, _MISSING)  # not __getitem__, which calls __missing__
    elif issubclass(kind, tuple):
        return tuple.__getitem__(value, key)
    elif issubclass(kind, list):
        return list.__getitem__(value, key)
    elif issubclass(kind, UserDict):
        found = item_of(attributes(value).get("data"), key)
    else:
        found = attributes(value).get(key, _MISSING)
    if found is _MISSING:
        raise LookupError(key)
    return found


def item_at(value: Any, path: tuple[Any, ...]) -> Any:
    """Return the item of nested containers that these keys lead to, outermost first, each as for ``item_of``."""
    for key in path:
        value = item_of(value, key)
    return value


def search_limit(most: int = MAX_VISITED) -> Iterator[int]:
    """Return an iterator that ends after ``most`` objects: a search takes one number for each object that it visits."""
    return iter(range(most))


def tensors_in(
    value: Any, depth: int = _MAX_DEPTH, in_objects: bool = True, left: Iterator[int] | None = None
) -> Iterator[torch.Tensor]:
    """Yield the readable tensors in containers nested up to ``depth`` levels.

    ``in_objects`` also searches sets, and attributes of plain objects such as a packed batch. ``left`` are the
    ``search_limit`` left; None for any number.
    """
    if left is not None and next(left, None) is None:
        return
    if is_readable_tensor(value):
        yield value
    elif depth and not is_a(value, (str, bytes, int, float, torch.Tensor, torch.nn.Module)):
        items = items_of(value, None if left is None else MAX_VISITED)
        if items is not None:
            inner = [item for _, item in items]
        elif not in_objects:
            return
        elif is_a(value, (set, frozenset)):
            inner = list((set if is_a(value, set) else frozenset).__iter__(value))
        else:
            inner = list(attributes(value).values())
        for item in inner:
            yield from tensors_in(item, depth - 1, in_objects, left)


def length_of(value: Any) -> int | None:
    """Return the length of a built-in container, or of a dataset of torch's own over such; None for anything else."""
    kind = type(value)
    for base in (list, tuple, dict, str, range):
        if issubclass(kind, base) and class_attribute(kind, "__len__") is vars(base)["__len__"]:
            return base.__len__(value)
    shape = shape_of(value)
    if shape is not None:
        return shape[0] if shape else None
    if class_attribute(kind, "__len__") is vars(TensorDataset)["__len__"]:
        tensors = stored(value, "tensors")
        return length_of(tensors[0]) if type(tensors) is tuple and tensors else None
    if class_attribute(kind, "__len__") is vars(Subset)["__len__"]:
        return length_of(stored(value, "indices"))
    if class_attribute(kind, "__len__") is vars(ConcatDataset)["__len__"]:
        sizes = stored(value, "cumulative_sizes")
        return sizes[-1] if type(sizes) is list and sizes else None
    return None


_dict_offset_of = type.__dict__["__dictoffset__"].__get__
"""Return where objects of a class keep their attributes; 0 if they have none, or compute them."""


def attributes(value: Any) -> dict[str, Any]:
    """Return an object's own attributes; an empty dict where it has none."""
    if not _dict_offset_of(type(value)):
        return {}
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception as error:  # noqa: BLE001 - it has none, or computes them
        raise_if_from_signal(error)
        return {}
    return found if type(found) is dict else {}


def class_attribute(kind: type, name: str) -> Any:
    """Return what a class or its bases define under a name, without binding it; ``_MISSING`` where none does."""
    for base in type.__dict__["__mro__"].__get__(kind):
        if name in (own := type.__dict__["__dict__"].__get__(base)):
            return own[name]
    return _MISSING


def has_class_attribute(kind: type, name: str) -> bool:
    """Return whether a class or one of its bases defines a name."""
    return class_attribute(kind, name) is not _MISSING


def is_library(thing: Any) -> bool:
    """Return whether a class or function is part of Python, torch, numpy or Lightning."""
    module = getattr(thing, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


class ComputedError(AttributeError):
    """Raised for an attribute that only user code can compute."""


def attribute(value: Any, name: str) -> Any:
    """Return an attribute that is stored, or computed by a property of a library.

    Raises:
        ComputedError: The user's own class computes it.
        AttributeError: There is none.
    """
    kind = type(value)
    on_class = class_attribute(kind, name)
    if isinstance(on_class, property):
        if not is_library(on_class.fget):
            raise ComputedError(f"{kind.__name__}.{name} is computed by code of the script")
        return on_class.__get__(value)
    if type(on_class) in (types.MemberDescriptorType, types.GetSetDescriptorType):
        return on_class.__get__(value)
    own = attributes(value)
    if name in own:
        return own[name]
    if on_class is _MISSING:
        raise AttributeError(f"{kind.__name__} has no attribute {name!r}")
    if has_class_attribute(type(on_class), "__get__"):
        raise ComputedError(f"{kind.__name__}.{name} is computed by code of the script")
    return on_class


def stored(value: Any, name: str) -> Any:
    """Return an attribute as ``attribute`` does; None if there is none or user code computes it."""
    try:
        return attribute(value, name)
    except AttributeError:
        return None


def size_reader(batch: Any) -> Callable[[Any], int]:
    """Return a function that reads the size of batches with this structure; -1 if no tensor has a dimension.

    The size is the first dimension of the first plain tensor or numpy array in (nested) tuples, lists, dicts and
    dataclasses; of a packed sequence, the number of sequences; of a batch of graphs, the number of graphs; of a
    TensorDict, its batch size. The shape of any other object is not read: its class may compute it.
    """
    path = _path_to_tensor(batch, 4, search_limit())
    if path is None:
        return lambda _: -1
    if path == ():
        return _first_dimension
    if len(path) == 1 and type(batch) in (dict, list, tuple):
        key = path[0]
        return lambda b: _first_dimension(b[key])
    return lambda b: _first_dimension(item_at(b, path))


def batch_size(batch: Any) -> int | None:
    """Return the number of samples of a batch as ``size_reader`` reads it; None if it is unknown."""
    size = size_reader(batch)(batch)
    return size if size >= 0 else None


def _first_dimension(value: Any) -> int:
    """Return the first dimension of a plain tensor or array. Called in each step: costs 0.2 us."""
    if type(value) is torch.Tensor:
        with without_overrides():
            return value.size(0)
    shape = shape_of(value)
    if shape is not None:
        return shape[0]
    n = _n_sequences(value) if type(value) is PackedSequence else _n_items(value)
    if n is None:
        raise TypeError(f"{type(value).__name__} is neither a plain tensor nor a numpy array")
    return n


def _n_sequences(packed: Any) -> int | None:
    """Return how many sequences a packed sequence has; its batch sizes are always on the CPU."""
    batch_sizes = tuple.__getitem__(packed, 1)
    if not shape_of(batch_sizes):
        return None
    with without_overrides():
        return int(batch_sizes[0])


def _n_items(value: Any) -> int | None:
    """Return the batch size of a TensorDict, or how many graphs a batch has by ``ptr`` or ``num_graphs``."""
    own = attributes(value)
    size = own.get("_batch_size")
    if type(size) is torch.Size and size:
        return size[0]
    for one in (own, *(attributes(own.get(name)) for name in ("_store", "_global_store"))):
        inner = one.get("_mapping")
        for found in (one, inner if type(inner) is dict else {}):
            n = found.get("num_graphs", found.get("_num_graphs"))
            shape = shape_of(found.get("ptr"))
            if type(n) is int:
                return n
            if shape is not None and len(shape) == 1:
                return shape[0] - 1
    return None


def _path_to_tensor(batch: Any, depth: int, left: Iterator[int]) -> tuple[Any, ...] | None:
    if next(left, None) is None or type(batch) in _SCALARS:
        return None
    shape = shape_of(batch)
    if shape is not None:
        return () if shape else None
    if type(batch) is PackedSequence or _n_items(batch) is not None:
        return ()
    for key, value in (items_of(batch, MAX_VISITED) or ()) if depth else ():
        if type(key) in (str, int):  # comparing keys of other types could run user code
            path = _path_to_tensor(value, depth - 1, left)
            if path is not None:
                return (key, *path)
    return None
