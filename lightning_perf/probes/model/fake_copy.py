"""Copy modules and batches with fake tensors, so that running the copy changes nothing of the original.

Wrappers of ``torch.compile``, DDP, FSDP and DeepSpeed and all hooks but those of ``torch.nn.utils`` are left out, and
sharded parameters get their full shape. Containers and plain Python objects are copied, code and large data are shared.
"""

import random
import types
from collections import OrderedDict, defaultdict, deque
from copy import deepcopy
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from lightning_perf.probes import plain

from . import module_walk

MAX_ITEMS = 10_000
"""Containers of more items are shared: they are data, not parts of a model."""

MAX_OBJECTS = 200_000
"""Limits the time of a copy to seconds."""

WRAPPERS = {
    "OptimizedModule": "_orig_mod", "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module", "DeepSpeedEngine": "module",
}  # fmt: skip
"""Classes that wrap a module, and where it is."""

_LEFT_OUT = {"_trainer": None, "_fabric": None, "_compiled_call_impl": None, "_compiler_ctx": None}
_HOOKS = frozenset(name for name in vars(nn.Module()) if name.endswith("_hooks"))
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)


class RefusedError(Exception):
    """A step cannot be counted without running it."""


def wrapper_of(module: nn.Module) -> str:
    """Return which of ``WRAPPERS`` a module is; empty if it is none."""
    return next((base.__name__ for base in type(module).__mro__ if base.__name__ in WRAPPERS), "")


class Copier:
    """Returns copies with tensors of a ``FakeTensorMode``, the same one for the same object.

    Sharded parameters are gathered on ``device``. Modules and functions are shared unless ``copies_modules``.

    Raises:
        RefusedError: An object holds a tensor that has no fake counterpart, or too many objects.
    """

    def __init__(self, mode: Any, device: torch.device, copies_modules: bool = True) -> None:
        self._mode, self._device, self._copies_modules = mode, device, copies_modules
        self._known: dict[int, tuple[Any, Any]] = {}  # with the original, which keeps its id
        self._flat: dict[int, dict[str, Any]] = {}

    def __call__(self, value: Any) -> Any:
        """Return the copy of a module, batch, function or container."""
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if len(self._known) > MAX_OBJECTS:
            raise RefusedError(f"the model holds more than {MAX_OBJECTS:,} objects")
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            return self._keep(value, self._fake(value))
        if issubclass(kind, nn.Module):
            return self._module(value) if self._copies_modules else value
        if issubclass(kind, tuple) and kind is not torch.Size:
            items = [self(each) for each in tuple.__iter__(value)]
            return self._keep(value, tuple.__new__(kind, items))
        if issubclass(kind, (list, dict, set, deque)):
            return self._container(value)
        if issubclass(kind, _RANDOM):
            return self._keep(value, deepcopy(value))
        if kind is np.ndarray:
            view = value.view()
            view.flags.writeable = False
            return self._keep(value, view)
        if self._copies_modules and (function := self._function(value)) is not None:
            return self._keep(value, function)
        return self._object(value, kind, plain.attributes(value))

    def _keep(self, value: Any, copy: Any) -> Any:
        self._known[id(value)] = value, copy
        return copy

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        kind = type(tensor)
        if issubclass(kind, FakeTensor):
            return tensor
        gathered = plain.attributes(tensor).get("ds_shape")  # by DeepSpeed's stage 3
        is_sharded = gathered is not None or kind.__name__ == "DTensor"
        is_known = is_sharded or not plain.has_class_attribute(kind, "__tensor_flatten__")
        if not plain.has_shape(tensor) or not is_known or plain.field(tensor, "layout") is not torch.strided:
            raise RefusedError(f"it holds a tensor of class {kind.__name__} that is lazy, sparse or not torch's own")
        shape = tuple(plain.field(tensor, "shape") if gathered is None else gathered)
        needs_grad, dtype = plain.field(tensor, "requires_grad"), plain.field(tensor, "dtype")
        with plain.without_overrides(), torch.inference_mode(False), torch.enable_grad(), self._mode:
            if is_sharded:
                fake = torch.empty(shape, dtype=dtype, device=self._device)
            else:
                strides = torch._C.TensorBase.stride(tensor)
                fake = torch.empty_strided(shape, strides, dtype=dtype, device=plain.field(tensor, "device"))
            if isinstance(tensor, nn.Parameter):
                return nn.Parameter(fake, needs_grad)
            # A clone is no leaf: the user's code may change it in place.
            return fake.requires_grad_().clone() if needs_grad else fake

    def _container(self, value: Any) -> Any:
        kind = type(value)
        if len(value) > MAX_ITEMS:
            return value
        base: Any = next(base for base in (OrderedDict, dict, list, set, deque) if issubclass(kind, base))
        copy = self._keep(value, base.__new__(kind))
        if issubclass(kind, dict):
            for key, each in dict.items(value):
                base.__setitem__(copy, key, self(each))
        else:
            items = [self(each) for each in base.__iter__(value)]
            base.__init__(copy, items, value.maxlen) if base is deque else base.__init__(copy, items)
        if issubclass(kind, defaultdict):
            copy.default_factory = value.default_factory
        for name, each in plain.attributes(value).items():
            object.__setattr__(copy, name, self(each))
        return copy

    def _function(self, value: Any) -> Any:
        """Return a function bound to copies; None for anything else."""
        kind = type(value)
        if kind is types.MethodType:
            return types.MethodType(self(value.__func__), self(value.__self__))
        if kind is partial:
            keywords = {name: self(each) for name, each in value.keywords.items()}
            return partial(self(value.func), *(self(each) for each in value.args), **keywords)
        if kind is not types.FunctionType:
            return None
        compiled = plain.attributes(value).get("_torchdynamo_orig_callable")
        if compiled is not None:
            return self(compiled)
        if value.__closure__ is None:
            return value
        cells = tuple(types.CellType() for _ in value.__closure__)
        made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        made.__kwdefaults__ = value.__kwdefaults__
        self._keep(value, made)  # first: it may refer to itself
        for cell, original in zip(cells, value.__closure__, strict=True):
            try:
                cell.cell_contents = self(original.cell_contents)
            except ValueError:  # the variable has no value yet
                continue
        return made

    def _module(self, module: nn.Module) -> Any:
        wrapper = wrapper_of(module)
        if wrapper == "FullyShardedDataParallel":
            self._note_flat_parameters(module)
        inner = dict(module_walk.named_children(module)).get(WRAPPERS.get(wrapper, ""))
        if inner is not None:
            return self._keep(module, self(inner))
        if isinstance(module, torch.jit.ScriptModule):
            raise RefusedError("operators of TorchScript are not visible")
        own, state = self._flat.get(id(module), {}), {}
        for name, each in plain.attributes(module).items():
            if name in _HOOKS:
                each = type(each)((key, hook) for key, hook in each.items() if _is_torchs_own(hook))
            elif name == "_parameters":
                each = {key: p for key, p in each.items() if "_shapes" not in plain.attributes(p)} | own
            if name not in own:
                state[name] = _LEFT_OUT.get(name, each)
        names = [base.__name__ for base in type(module).__mro__]
        if "LightningModule" in names:
            state.update(log=_nothing, log_dict=_nothing)
        # ``fully_shard`` puts a class of its own before the module's.
        kind = type(module) if "FSDPModule" not in names else type(module).__mro__[names.index("FSDPModule") + 1]
        return self._object(module, kind, state)

    def _note_flat_parameters(self, module: nn.Module) -> None:
        """Remember the parameters that FSDP's first version holds in a flat one, by their module's id and name."""
        flat: Any = plain.stored(plain.stored(module, "_handle"), "flat_param")
        if flat is None:
            return
        for info, shape in zip(flat._param_infos, flat._shapes, strict=True):
            whole = nn.Parameter(torch.empty(0, dtype=flat.dtype), flat.requires_grad)
            whole.ds_shape = shape  # type: ignore[attr-defined]
            self._flat.setdefault(id(info.module), {})[info.param_name] = whole
        for info in flat._shared_param_infos:
            shared = self._flat[id(info.prim_module)][info.prim_param_name]
            self._flat.setdefault(id(info.module), {})[info.param_name] = shared

    def _object(self, value: Any, kind: type, state: dict[str, Any]) -> Any:
        """Return a copy of an object whose state is in its ``__dict__``; any other object itself."""
        if not state or isinstance(value, (type, types.ModuleType, types.FunctionType, Enum)):
            return value
        try:
            copy: Any = object.__new__(kind)
        except TypeError:  # its state is not in Python
            return value
        self._keep(value, copy)
        plain.attributes(copy).update((name, self(each)) for name, each in state.items())
        return copy


def _is_torchs_own(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.nn.utils")


def _nothing(*_: Any, **__: Any) -> None:
    return None
