"""Keep user code that runs in a copy of a model from changing what it reaches outside of the copy."""

from __future__ import annotations

import dis
import enum
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from . import plain
from .code_lines import USER, owner_of

MAX_KEPT = 10_000
_CONTAINERS = (OrderedDict, dict, list, set)
_HARMLESS = (types.NoneType, bool, int, float, complex, str, bytes, range, slice, enum.Enum, re.Pattern,
             types.FunctionType, types.ModuleType, torch.Tensor, torch.dtype, torch.device)  # fmt: skip
_TRACKERS = {"wandb", "mlflow", "comet_ml", "neptune", "clearml", "swanlab", "aim"}


class RefusedError(Exception):
    """The step cannot be counted without running it."""


class StateGuard:
    """Context manager around user code, which it watches by ``sys.setprofile``.

    Containers and objects that global variables, closures and classes hold are restored at the end. Code that opens
    a file, assigns variables outside of its function, or uses an object whose state cannot be restored is stopped.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._seen: set[types.CodeType] = set()
        self._owners: dict[str, str] = {}
        for kind in classes:
            self._keep(kind, kind.__name__)

    def __enter__(self) -> None:
        if sys.getprofile() is not None:
            raise RefusedError("a profiler of the script is in place")
        sys.setprofile(self._see)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        for owner, before in self._kept.values():
            _restore(owner, before)

    def _see(self, frame: types.FrameType, event: str, what: Any) -> None:
        code = frame.f_code
        if event not in ("call", "c_call") or self._owner(code.co_filename) != USER:
            return
        if event == "c_call":
            if what is open:
                raise RefusedError("the step opens a file")
            return
        if code not in self._seen:
            self._seen.add(code)
            for each in dis.get_instructions(code):
                is_outside = each.opname == "STORE_DEREF" and each.argval in code.co_freevars
                if is_outside or each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                    raise RefusedError(f"the step assigns {each.argval}, a variable outside of its function")
            self._keep_names(code, frame.f_globals)
        for name in code.co_freevars:
            if name in frame.f_locals:
                self._keep(frame.f_locals[name], name)

    def _keep_names(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        for name in code.co_names:
            value = variables.get(name)
            if not isinstance(value, types.ModuleType):
                self._keep(value, name)
            elif value.__name__.partition(".")[0] in _TRACKERS:
                raise RefusedError(f"the step uses {value.__name__}")
            elif value.__dict__ is not variables and self._owner(getattr(value, "__file__", None) or "<") == USER:
                self._kept[id(value)] = value, dict(vars(value))
                self._keep_names(code, vars(value))

    def _owner(self, file: str) -> str:
        owner = self._owners.get(file)
        if owner is None:
            owner = self._owners[file] = owner_of(file)
        return owner

    def _keep(self, value: Any, name: str) -> None:
        """Remember the state of an object, and of those that it holds."""
        kind = type(value)
        if id(value) in self._kept or isinstance(value, _HARMLESS):
            return
        if len(self._kept) > MAX_KEPT:
            raise RefusedError(f"the step uses {name}, which holds more than {MAX_KEPT:,} objects")
        if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
            self._keep(value.__self__, name)
        elif isinstance(value, partial):
            self._keep((value.func, value.args, value.keywords), name)
        elif isinstance(value, type):
            if not plain.is_library(value):
                self._kept[id(value)] = value, dict(vars(value))
                for attribute, each in vars(value).items():
                    if isinstance(each, _CONTAINERS) and not attribute.startswith("__"):
                        self._keep(each, name)
        elif isinstance(value, (*_CONTAINERS, tuple, frozenset)):
            base = _base(value)
            self._kept[id(value)] = value, base(value)
            items = [*dict.keys(value), *dict.values(value)] if isinstance(value, dict) else list(base(value))
            for each in items:
                self._keep(each, name)
        elif _has_python_state(kind):
            self._kept[id(value)] = value, None
            self._keep(plain.attributes(value), name)
        elif not kind.__module__.startswith(("torch.", "typing")) or kind is torch.Generator:
            raise RefusedError(f"the step uses {name}, a {kind.__name__}, from outside of the model")


def _base(value: Any) -> Any:
    return next(base for base in (*_CONTAINERS, tuple, frozenset) if isinstance(value, base))


def _has_python_state(kind: type) -> bool:
    """Return whether all state of an object is in its ``__dict__``."""
    try:
        return hasattr(object.__new__(kind), "__dict__")
    except TypeError:
        return False


def _restore(owner: Any, before: Any) -> None:
    if isinstance(owner, (type, types.ModuleType)):
        now = dict(vars(owner))
        for name in now.keys() - before.keys():
            delattr(owner, name)
        for name, value in before.items():
            if now.get(name) is not value:
                setattr(owner, name, value)
    elif isinstance(owner, list):
        if len(owner) != len(before) or any(a is not b for a, b in zip(owner, before, strict=False)):
            list.__setitem__(owner, slice(None), before)
    elif isinstance(owner, (dict, set)):
        base = _base(owner)
        pairs = zip(dict.items(owner), dict.items(before), strict=False) if isinstance(owner, dict) else ()
        if len(owner) != len(before) or any(a is not c or b is not d for (a, b), (c, d) in pairs):
            base.clear(owner)
            base.update(owner, before)
