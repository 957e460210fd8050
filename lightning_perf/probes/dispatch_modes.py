"""Leaves torch's dispatch modes, also those that an interrupt left half entered."""

from __future__ import annotations

from typing import Any

from torch.utils import _python_dispatch

_FLAGS = {
    "old_dispatch_mode_flags": "_is_in_torch_dispatch_mode",
    "old_non_infra_dispatch_mode_flags": "_is_in_non_infra_torch_dispatch_mode",
    "old_without_ignore_compile_internals_dispatch_mode_flags": "_is_in_any_mode_without_ignore_compile_internals",
}
"""Where torch keeps its flags while a mode is entered, and the flags."""


def leave_mode(mode: Any) -> bool:
    """Leave a ``TorchDispatchMode`` that is entered once, in part, or not at all.

    Args:
        mode: The mode.

    Returns:
        False where it must be tried again later, because a mode of somebody else's is above it.
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
