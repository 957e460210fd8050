"""Shared parts of the tracers of single steps: a dispatch mode, hooks on modules, and the removal of both.

Modes and hooks are also removed if an interrupt came while they were installed or removed.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.torch_version import TorchVersion
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from lightning_perf.interrupts import error_text
from lightning_perf.probes.plain import class_attribute, is_library
from lightning_perf.seams import Undos, change_attribute, remove_hook


class StepTracer:
    """Traces one step, from ``open`` to ``close``.

    Attributes:
        failure: Why the step was not traced; empty normally.
        cost_ns: Known tracing cost of the step.
    """

    failure: str
    cost_ns: int
    _now_ns: Callable[[], int]

    def open(self) -> None:
        """Begin the step."""

    def enters(self, name: str) -> None:
        """Handle the start of a part of the step."""

    def leaves(self, name: str) -> None:
        """Handle the end of a part of the step, even if it raised."""

    def close(self) -> bool:
        """End the step; return False if a dispatch mode of the user's is above: call again later."""
        raise NotImplementedError

    def _charged(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function of the tracer from the user's code: add its cost, record its error."""
        begin = self._now_ns()
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - recorded; the step goes on
            self._fail(error)
        self.cost_ns += self._now_ns() - begin

    def _fail(self, error: Exception) -> None:
        text = error_text(error)
        self.failure = self.failure or text


_FLAGS = {
    "old_dispatch_mode_flags": "_is_in_torch_dispatch_mode",
    "old_non_infra_dispatch_mode_flags": "_is_in_non_infra_torch_dispatch_mode",
    "old_without_ignore_compile_internals_dispatch_mode_flags": "_is_in_any_mode_without_ignore_compile_internals",
}
"""Where torch keeps its flags while a mode is entered, and the flags."""


_Base: Any = TorchDispatchMode  # torch's own class has no types

_refuses_subclasses = torch.__version__ < TorchVersion("2.6")
"""Whether ``Tensor.as_subclass`` raises below any dispatch mode."""

_as_subclass = torch.Tensor.as_subclass
_TENSOR_NEW = class_attribute(torch.Tensor, "__new__")


def _as_subclass_without_modes(tensor: torch.Tensor, kind: Any) -> Any:
    with _disable_current_modes():
        return _as_subclass(tensor, kind)


_creating = threading.Lock()
_changed: dict[type, list[Any]] = {}
"""Classes whose ``__new__`` is changed, with the undo and the number of modes: trainings may run in several threads."""


def _allow_subclasses(undos: Undos) -> None:
    """Let ``Tensor.__new__`` create tensors of the user's classes, which raises below any dispatch mode.

    Only these classes are changed: dynamo refuses to be imported while ``Tensor`` itself has another ``__new__``.
    """
    pending = [each for each in torch.Tensor.__subclasses__() if not is_library(each)]
    while pending:
        kind = pending.pop()
        pending += type.__subclasses__(kind)
        new = class_attribute(kind, "__new__")
        function = new.__func__ if isinstance(new, staticmethod) else new
        calls_another = "__new__" in getattr(getattr(function, "__code__", None), "co_names", ())
        with _creating:
            if kind in _changed:
                _changed[kind][1] += 1
            elif new is _TENSOR_NEW or ("__new__" in vars(kind) and calls_another):
                _changed[kind] = [Undos(), 1]
                change_attribute(kind, "__new__", staticmethod(_without_mode(kind.__new__)), _changed[kind][0])
            else:
                continue
        undos.note(partial(_restore_creation, kind))


def _restore_creation(kind: type) -> None:
    with _creating:
        _changed[kind][1] -= 1
        if not _changed[kind][1]:
            _changed.pop(kind)[0].close()


def _without_mode(new: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(new)
    def create(*args: Any, **kwargs: Any) -> Any:
        stack = _python_dispatch._get_current_dispatch_mode_stack()
        if len(stack) != 1 or not isinstance(stack[0], PassiveMode):
            return new(*args, **kwargs)
        with _python_dispatch._pop_mode_temporarily():
            return new(*args, **kwargs)

    return create


class PassiveMode(_Base):  # type: ignore[misc]
    """A mode that passes every operator on."""

    undos: Undos | None = None

    supports_higher_order_operators = True
    """Without it torch raises in the user's step at operators such as ``torch.cond``."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, to keep compiled regions compiled (called by torch 2.10 and newer).

        Below any other mode dynamo leaves a new function uncompiled for good, with all that it was compiled for before.
        """
        return True

    def __enter__(self) -> Any:
        self.undos = Undos()
        _allow_subclasses(self.undos)
        if _refuses_subclasses:
            change_attribute(torch.Tensor, "as_subclass", _as_subclass_without_modes, self.undos)
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def current_mode() -> Any:
    """Return the innermost dispatch mode in place; None without one."""
    return _python_dispatch._get_current_dispatch_mode()


def can_trace_compiled() -> bool:
    """Return whether compiled regions stay compiled below a dispatch mode; older torch falls back to eager."""
    return hasattr(_Base, "ignore_compile_internals")


def eager() -> AbstractContextManager[Any]:
    """Run compiled functions uncompiled, so that their operators are visible (torch 2.6 and newer)."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    return set_stance("force_eager") if set_stance is not None else nullcontext()


def leave_mode(mode: Any) -> bool:
    """Leave a ``PassiveMode`` that is entered once, in part, or not at all.

    Return False if another mode is above it; call again later.
    """
    modes: Any = _python_dispatch
    if modes._get_current_dispatch_mode() is mode:
        try:
            mode.__exit__(None, None, None)
        except IndexError:  # an interrupt came within torch's own ``__exit__``: the flags are restored already
            modes._pop_mode()
    elif any(each is mode for each in modes._get_current_dispatch_mode_stack()):
        return False
    for kept, flag in _FLAGS.items():  # an interrupt came within torch's own ``__enter__`` or ``__exit__``
        values = getattr(mode, kept, None)
        if values and hasattr(modes, flag):
            setattr(modes, flag, values.pop())
    if mode.undos is not None:
        mode.undos.close()
    return True


_READING = ("tolist", "numpy", "cpu")


def patch_reads(called: Callable[..., Any], undos: Undos) -> None:
    """Let ``called(name, tensor, original, args, kwargs)`` run what reads tensors without an operator.

    It is ``tolist``, ``numpy``, ``cpu`` of a tensor that is already there, and ``print``, which hides its operators.
    """
    for name in _READING:
        change_attribute(torch.Tensor, name, _reading(called, name, getattr(torch.Tensor, name), True), undos)
    to_text = torch._tensor_str._str
    change_attribute(torch._tensor_str, "_str", _reading(called, "print(tensor)", to_text, False), undos)


def _reading(called: Callable[..., Any], name: str, original: Any, is_method: bool) -> Callable[..., Any]:
    @wraps(original)
    def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # Left to itself, torch gives `__torch_function__` what is in the place of the original now.
        is_overridden = is_method and has_torch_function_unary(tensor)
        run = partial(handle_torch_function, original, (tensor,)) if is_overridden else original
        return called(name, tensor, run, args, kwargs)

    return method


class ModuleWatch:
    """Calls functions when modules begin and end their forward pass, even if it raises.

    It uses torch's hooks on all modules, which do not change the modules themselves: copies and pickles take no hook
    along, and modules that behave differently with hooks, such as ``nn.TransformerEncoderLayer`` in evaluation, do not
    change. ``enters`` gets a module's path, positional and keyword arguments, ``leaves`` its path and output; neither
    may raise. ``running`` holds the paths of the modules under way, outermost first.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        enters: Callable[[str, Any, Any], None] = lambda *_: None,
        leaves: Callable[[str, Any], None] = lambda *_: None,
    ) -> None:
        self.running: list[str] = []
        self._paths = {id(module): path for path, module in modules.items() if can_have_hooks(module)}
        self._enters, self._leaves = enters, leaves
        self._hooks = (self._entering, self._leaving)  # these objects: `remove_hook` compares by identity

    @property
    def innermost(self) -> str:
        """Path of the innermost module under way; empty without one."""
        return self.running[-1] if self.running else ""

    def install(self) -> None:
        entering, leaving = self._hooks
        register_module_forward_pre_hook(entering)
        register_module_forward_hook(leaving, always_call=True)

    def remove(self) -> None:
        """Stop watching. Can be called twice."""
        for hook in self._hooks:
            remove_global_hook(hook)

    def _entering(self, module: nn.Module, args: Any) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            self.running.append(path)
            # Hooks on all modules are not given keyword arguments: they are a variable of torch's calling function.
            self._enters(path, args, sys._getframe(1).f_locals.get("kwargs"))

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            if self.running:
                self.running.pop()
            self._leaves(path, output)


def remove_global_hook(hook: Any) -> None:
    """Remove a hook on the forward passes of all modules, if it is registered; see ``remove_hook``."""
    registries = (value for name, value in vars(torch_module).items() if name.startswith("_global_forward_"))
    remove_hook([one for one in registries if isinstance(one, dict)], hook)


def can_have_hooks(module: nn.Module) -> bool:
    """Return whether hooks see a module's forward pass without changing it."""
    return not isinstance(module, torch.jit.ScriptModule)
