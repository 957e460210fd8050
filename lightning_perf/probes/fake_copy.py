"""Copy a model or a batch with fake tensors, so that running the copy changes nothing of the original.

Wrappers of ``torch.compile``, DDP, FSDP and DeepSpeed and their hooks are left out, and sharded parameters have their
full shape. The copy takes no tensor, generator, file or Trainer along: what cannot be copied raises where it is used.
"""

from __future__ import annotations

import io
import pickle
import types
import weakref
from typing import Any

import numpy as np
import torch
from torch import nn

from lightning_perf.interrupts import raise_if_from_signal

from . import module_walk, plain
from .state_guard import RefusedError
from .tracing import current_mode

MAX_OBJECTS = 200_000
MAX_BYTES = 2**23
MAX_ITEMS = 10_000
"""A container of more items is left out; a copy of more objects, or more bytes without its tensors, is refused."""

_LARGE_TEXT = 2**16
_LEFT_OUT = {"Trainer", "Logger", "LightningDataModule", "Dataset", "DataLoader", "Optimizer", "Callback"}


def copied(value: Any, mode: Any, device: torch.device) -> Any:
    """Return a deep copy with tensors of a ``FakeTensorMode``.

    Args:
        value: A module or a batch.
        mode: The mode.
        device: Where sharded parameters are gathered.

    Raises:
        Exception: It cannot be copied.
    """
    flat = module_walk.flat_parameters(value) if isinstance(value, nn.Module) else {}
    if current_mode() is not None:
        raise RefusedError("a dispatch mode of the script is in place")
    stream = _Stream()
    with plain.without_overrides(), mode:
        pickler = _Pickler(stream, device, flat)
        pickler.dump(value)
        stream.seek(0)
        unpickler = pickle.Unpickler(stream)
        unpickler.persistent_load = pickler.others.__getitem__  # type: ignore[method-assign]
        return unpickler.load()


class _Absent:
    """Stands for an object that is not copied: raises where the step uses it."""

    what: str

    def __init__(self, what: str) -> None:
        self.__dict__["what"] = what

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise RefusedError(f"the step uses {self.what}, which is not copied")

    __getattr__ = __setattr__ = __call__ = __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = _refuse
    __enter__ = __exit__ = __contains__ = _refuse


class _NoMetric(nn.Module):
    """Stands for a metric of torchmetrics: it reads values, and computes nothing of the model."""

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(())

    update = compute = reset = forward


class _Shared:
    """Marks an object that the copy refers to."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Stream(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > MAX_BYTES:
            raise RefusedError(f"the model's attributes hold more than {MAX_BYTES >> 20} MiB besides tensors")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles everything but tensors, code, and what a copy must not take along."""

    def __init__(self, stream: io.BytesIO, device: torch.device, flat: dict[int, dict[str, Any]]) -> None:
        super().__init__(stream, 5)
        self.others: list[Any] = []
        self._device, self._flat = device, flat
        self._known: dict[int, tuple[int, Any]] = {}
        self._n = 0

    def persistent_id(self, value: Any) -> int | None:
        self._n += 1
        if self._n > MAX_OBJECTS:
            raise RefusedError(f"the model holds more than {MAX_OBJECTS:,} objects")
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        other = self._other(value)
        if other is value and not isinstance(value, (type, types.ModuleType)) and not _is_shared(value):
            return None
        self.others.append(other)
        self._known[id(value)] = len(self.others) - 1, value
        return len(self.others) - 1

    def _other(self, value: Any) -> Any:
        """Return what a copy has in place of an object; the object itself if it is shared or pickled."""
        kind = type(value)
        if kind is _Shared:
            return value.value
        if issubclass(kind, torch.Tensor):
            return _fake(value, self._device)
        if kind is np.ndarray:
            if value.dtype.hasobject:
                return _Absent("an array of objects")
            view = value.view()
            view.flags.writeable = False
            return view
        if issubclass(kind, (list, dict, set)) and kind.__len__(value) > MAX_ITEMS:
            return _Absent(f"a {kind.__name__} of more than {MAX_ITEMS:,} items")
        if kind is torch.Generator or _LEFT_OUT & set(module_walk.library_names(kind)):
            return _Absent(f"a {kind.__name__}")
        return value

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if kind is types.MethodType:
            return types.MethodType, (value.__func__, value.__self__)
        if kind is types.FunctionType:  # a compiled one: others are shared
            return _same, (plain.attributes(value)["_torchdynamo_orig_callable"],)
        if kind is weakref.ref and (target := value()) is not None:
            return weakref.ref, (target,)
        try:
            return value.__reduce_ex__(5)
        except Exception as error:  # noqa: BLE001 - a lock, a file, a thread, …
            raise_if_from_signal(error)
            return _same, (_Shared(_Absent(f"a {kind.__name__}")),)

    def _module(self, value: nn.Module) -> Any:
        inner = _unwrapped(value)
        if inner is not value:
            return _same, (inner,)
        kind: Any = type(value)
        if isinstance(value, torch.jit.ScriptModule):
            raise RefusedError("operators of TorchScript are not visible")
        if any(base.__module__.startswith("torchmetrics.") for base in kind.__mro__):
            return _same, (_Shared(_NoMetric()),)
        full = self._flat.get(id(value), {})
        state = {
            name: _of_library(each) if name.endswith("_hooks") else each
            for name, each in plain.attributes(value).items()
            if name not in full
        }
        state |= {name: None for name in ("_trainer", "_compiled_call_impl", "_compiler_ctx") if name in state}
        state["_parameters"] = dict(plain.items_of(state["_parameters"]) or ()) | full
        state["_parameters"].pop("_flat_param", None)
        bare = next(base for base in kind.__mro__ if "FSDPModule" not in module_walk.library_names(base))
        return object.__new__, (_Shared(bare),), state, None, None, _set


def _fake(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a fake tensor of a tensor's full shape; call it within the mode."""
    kind = type(value)
    is_spread = kind.__name__ == "DTensor"
    if not plain.has_shape(value) or not (is_spread or plain.is_missing(_flatten(kind))):
        raise RefusedError(f"the model holds a tensor of class {kind.__name__}")
    if plain.field(value, "layout") is not torch.strided:
        raise RefusedError("the model holds a tensor that is not strided")
    shape, stride = module_walk.full_shape(value), torch._C.TensorBase.stride(value)
    where = plain.field(value, "device")
    if is_spread or shape != tuple(plain.field(value, "shape")):
        stride, where = torch.empty(shape, device="meta").stride(), device
    dtype, needs_grad = plain.field(value, "dtype"), plain.field(value, "requires_grad")
    fake = torch.empty_strided(shape, stride, dtype=dtype, device=where)
    return nn.Parameter(fake, needs_grad) if isinstance(value, nn.Parameter) else fake.requires_grad_(needs_grad)


def _flatten(kind: type) -> Any:
    return plain.class_attribute(kind, "__tensor_flatten__")


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the module in a wrapper of torch's; any other module itself."""
    inner = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module",
             "FullyShardedDataParallel": "_fsdp_wrapped_module"}  # fmt: skip
    name = next((inner[each] for each in module_walk.library_names(type(module)) if each in inner), None)
    children = dict(module_walk.named_children(module))
    return children.get(name, module) if name is not None else module


def _is_shared(value: Any) -> bool:
    """Return whether a copy may refer to an object: code without state, or a long text."""
    kind = type(value)
    if kind in (str, bytes):
        return len(value) > _LARGE_TEXT
    if kind is types.FunctionType:
        return "_torchdynamo_orig_callable" not in plain.attributes(value)
    is_builtin = kind is types.BuiltinFunctionType
    return is_builtin and (value.__self__ is None or isinstance(value.__self__, (type, types.ModuleType)))


def _of_library(hooks: Any) -> Any:
    """Return the hooks of ``torch.nn.utils``, such as weight norm; those of wrappers and of the user are left out."""
    names = ((key, getattr(hook, "__module__", None)) for key, hook in plain.items_of(hooks) or ())
    kept = {key for key, name in names if isinstance(name, str) and name.startswith("torch.nn.utils")}
    return type(hooks)((key, hook) for key, hook in hooks.items() if key in kept) if hooks else hooks


def _same(value: Any) -> Any:
    return value


def _set(value: Any, state: dict[str, Any]) -> None:
    vars(value).update(state)
