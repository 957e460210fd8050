"""A dispatch mode that changes nothing, and how to leave modes, also those that an interrupt left half entered."""

from __future__ import annotations

from typing import Any

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

_FLAGS = {
    "old_dispatch_mode_flags": "_is_in_torch_dispatch_mode",
    "old_non_infra_dispatch_mode_flags": "_is_in_non_infra_torch_dispatch_mode",
    "old_without_ignore_compile_internals_dispatch_mode_flags": "_is_in_any_mode_without_ignore_compile_internals",
}
"""Where torch keeps its flags while a mode is entered, and the flags."""


_Base: Any = TorchDispatchMode  # torch's own class has no types


class PassiveMode(_Base):  # type: ignore[misc]
    """A mode that passes every operator on."""

    supports_higher_order_operators = True
    """Without it torch raises in the user's step at operators such as ``torch.cond``."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled regions compiled (torch 2.10 and newer ask).

        Below any other mode dynamo leaves a new function uncompiled for good, with all that it was compiled for before.
        """
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def current_mode() -> Any:
    """Return the innermost dispatch mode in place; None without one."""
    return _python_dispatch._get_current_dispatch_mode()


def can_look_at_compiled() -> bool:
    """Return whether compiled regions stay compiled below a dispatch mode; older torch falls back to eager."""
    return hasattr(_Base, "ignore_compile_internals")


def leave_mode(mode: Any) -> bool:
    """Leave a ``TorchDispatchMode`` that is entered once, in part, or not at all.

    Return False if another mode is above it; call again later.
    """
    torch: Any = _python_dispatch
    if torch._get_current_dispatch_mode() is mode:
        try:
            mode.__exit__(None, None, None)
        except IndexError:  # an interrupt came within torch's own ``__exit__``: the flags are restored already
            torch._pop_mode()
    elif any(each is mode for each in torch._get_current_dispatch_mode_stack()):
        return False
    for kept, flag in _FLAGS.items():  # an interrupt came within torch's own ``__enter__`` or ``__exit__``
        values = getattr(mode, kept, None)
        if values and hasattr(torch, flag):
            setattr(torch, flag, values.pop())
    return True
