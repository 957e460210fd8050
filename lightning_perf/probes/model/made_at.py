"""Find the user's line that makes a part of a model, without running it."""

import dis
import functools
import os
from types import CodeType, FunctionType

from torch import nn

from lightning_perf.probes.host_lines.calls import line_of
from lightning_perf.probes.sampled_steps.code_lines import USER, owner_of

from .module_walk import named_children

_BY_NAME = ("register_buffer", "register_parameter", "register_module", "add_module")


def made_at(root: nn.Module, path: str) -> str:
    """Return the line that makes a submodule, parameter or buffer, e.g. ``"model.py:31"``; empty if none is found.

    Of an item of a container or a library's module, that is the line that makes this.
    """
    found, owner = "", root
    for name in path.split("."):
        found = _assigned_at(type(owner), name) or found
        child = dict(named_children(owner)).get(name)
        if child is None:
            break
        owner = child
    return found


def _assigned_at(kind: type, name: str) -> str:
    """Return the first line of a class's own methods that sets the attribute, or registers it by its name."""
    functions = (each for one in kind.__mro__ for each in vars(one).values() if isinstance(each, FunctionType))
    for function in functions:
        code = function.__code__
        if owner_of(code.co_filename) == USER and (offset := _offset(code, name)) is not None:
            return f"{os.path.basename(code.co_filename)}:{line_of(code, offset)}"
    return ""


@functools.lru_cache(maxsize=1024)  # by code, as classes need not be hashable
def _offset(code: CodeType, name: str) -> int | None:
    is_by_name = name in code.co_consts and any(each in code.co_names for each in _BY_NAME)
    if name not in code.co_names and not is_by_name:
        return None
    for each in dis.get_instructions(code):
        if each.argval == name and (each.opname == "STORE_ATTR" or (is_by_name and each.opname == "LOAD_CONST")):
            return each.offset
    return None
