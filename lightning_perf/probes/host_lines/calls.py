"""Name the function that a sampled line was calling, and distinguish torch operators from other code."""

import ast
import dis
import functools
import itertools
import linecache
import os
import re
import sys
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from lightning_perf.probes import plain

_BUILTIN_METHODS = frozenset(name for kind in (str, bytes, list, dict, set, tuple, int, float) for name in dir(kind))
_OPERATOR_INSTRUCTIONS = frozenset(
    {"BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "UNARY_NEGATIVE", "UNARY_INVERT", "STORE_SUBSCR", "BINARY_SLICE",
     "TO_BOOL", "BINARY_ADD", "BINARY_SUBTRACT", "BINARY_MULTIPLY", "BINARY_TRUE_DIVIDE", "BINARY_MATRIX_MULTIPLY",
     "BINARY_POWER", "INPLACE_ADD", "INPLACE_SUBTRACT", "INPLACE_MULTIPLY", "INPLACE_TRUE_DIVIDE"}
)  # fmt: skip
"""Instructions after which the interpreter does not check for lock requests of other threads. A thread sampled on one
of them runs code that has released the lock, as torch's operators do and Python's own never do."""

_module_of_class = type.__dict__["__module__"].__get__  # a metaclass could compute the attribute

_JUMPS = ("POP_JUMP_FORWARD_IF", "POP_JUMP_IF") if sys.version_info >= (3, 12) else ("POP_JUMP_FORWARD_IF",)
"""Instructions that take the truth value of a tensor. In Python 3.10, each jump checks for lock requests."""

_JUMP_CODES = frozenset((*dis.hasjrel, *dis.hasjabs))

_WRAPPED_METRIC = re.compile(r"_wrap_(update|compute)\.<locals>\.wrapped_func")

_FROM_PYTHON = ("tensor", "as_tensor", "asarray")
"""Functions of torch that hold the interpreter lock while they make tensors of Python's numbers and lists."""

_CONVERSIONS = ("float", "int", "bool")  # they wait for a tensor, and hold the interpreter lock for other values


@functools.lru_cache(maxsize=1024)
def line_of(code: CodeType, offset: int) -> int:
    """Return the line of an instruction.

    The compiler gives none to the jump back at the end of a loop's body. A loop whose condition is mostly false spends
    its time before that jump, so it is the line of the last instruction that jumps there; without one, that of the
    instruction before it.
    """
    lines = [line for begin, end, line in code.co_lines() for _ in range(begin, end, 2)]
    if line := next(iter(lines[max(0, offset) // 2 :]), None):
        return line
    jumps = [
        lines[each.offset // 2]
        for each in dis.get_instructions(code)
        if each.opcode in _JUMP_CODES and each.argval == offset
    ]
    before = [line for line in lines[: offset // 2] if line]
    return next(filter(None, reversed(jumps)), 0) or (before or [code.co_firstlineno])[-1]


def library_call(code: CodeType, module: str) -> str:
    """Return the name of a library's function, e.g. ``"json.loads"`` or ``"pandas.DataFrame.sort_values"``.

    Those of ``torch.nn.functional`` are named as in the code of a line, e.g. ``"nn.functional.interpolate"``, and
    methods that torchmetrics wraps as they are called, e.g. ``"torchmetrics.Metric.compute"``.
    """
    name = _WRAPPED_METRIC.sub(r"\1", getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")
    package = "nn.functional" if module == "torch.nn.functional" else module.partition(".")[0]
    return f"{package}.{name}" if package else name


class OwnCode:
    """Code that a user's frame ran itself: a C function, an operator or Python.

    Attributes:
        call: The function called, as in the text of the line; empty if none was.
        is_operator: Whether it was a torch operator. None if only the timing of samples can decide: for a method that
            tensors and Python's own types both have, of an unknown object, a conversion whose argument may be a
            tensor, or a tensor that may be made of a list.
    """

    __slots__ = ("call", "is_operator")

    def __init__(self, code: CodeType, offset: int, line: int, names: dict[str, Any]) -> None:
        self.call = ""
        self.is_operator: bool | None = False
        instruction = _instruction(code, offset)
        if instruction in _OPERATOR_INSTRUCTIONS or instruction.startswith(_JUMPS):
            self.is_operator = True
        if "CALL" not in instruction:
            return
        function = _called(code, offset, line)
        if not function:
            return
        root, _, method = function.partition(".")
        target = names.get(root)
        self.call = function.removeprefix("self.")
        if function in _CONVERSIONS and function not in names:
            self.is_operator = None
            return
        if module := _module_of(target):
            is_torch = module.partition(".")[0] == "torch"
            self.is_operator = None if is_torch and function.rpartition(".")[2] in _FROM_PYTHON else is_torch
        elif target is not None and method and "." not in method:  # of a global object
            self.is_operator = str(type(target).__module__).partition(".")[0] == "torch"
        elif method:
            name = function.rpartition(".")[2]
            is_tensors = hasattr(torch.Tensor, name)
            self.is_operator = None if is_tensors and name in _BUILTIN_METHODS else is_tensors


def _module_of(target: Any) -> str:
    """Return the name of a module, or of the module of something callable; empty for other objects."""
    kind = type(target)
    if kind in (FunctionType, BuiltinFunctionType):
        return str(target.__module__ or "")
    if issubclass(kind, ModuleType):
        return str(plain.attributes(target).get("__name__"))
    if issubclass(kind, type):
        return str(_module_of_class(target))
    return str(plain.attributes(target).get("__module__") or _module_of_class(kind)) if callable(target) else ""


def _instruction(code: CodeType, offset: int) -> str:
    bytecode = code.co_code
    if not 0 <= offset < len(bytecode):
        return ""
    while offset > 1 and dis.opname[bytecode[offset]] == "CACHE":  # of the instruction before, from Python 3.11 on
        offset -= 2
    return dis.opname[bytecode[offset]]


def _called(code: CodeType, offset: int, line: int) -> str:
    """Return the dotted name of the function that an instruction calls; empty if unknown.

    Before Python 3.11, instructions have no columns: the outermost call of the line is used.
    """
    source = _segment(code, offset)
    if source is None:
        source = linecache.getline(code.co_filename, line).strip()
    call = next((node for node in _nodes(source) if isinstance(node, ast.Call)), None)
    return "" if call is None else _dotted(call.func)


def _nodes(source: str) -> list[ast.AST]:
    """Return the nodes of an expression or of one line, outermost first; none if it cannot be parsed."""
    for text in (f"({source})", source, f"{source.rstrip(':')}: pass" if source.endswith(":") else ""):
        try:
            return list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError):
            continue
    return []


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif len(parts) == 1:
        parts.append("")  # a method of an expression
    else:
        return ""
    return ".".join(reversed(parts))


def _segment(code: CodeType, offset: int) -> str | None:
    """Return the source of an instruction's expression; None before Python 3.11 and where it is unknown."""
    if sys.version_info < (3, 11):
        return None
    begin, end, first, last = next(itertools.islice(code.co_positions(), offset // 2, None), (None,) * 4)
    if begin is None or end is None or first is None or last is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(begin, end + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][:last]
    lines[0] = lines[0][first:]
    return b" ".join(line.strip() for line in lines).decode(errors="replace")


def shown_file(file: str) -> str:
    """Return a file's path relative to the working directory, or from its package on if it is elsewhere."""
    path = os.path.abspath(file)
    try:
        relative = os.path.relpath(path)
    except ValueError:  # on another drive
        relative = path
    return "/".join(path_in_package(path)) if relative.startswith(os.pardir) else relative


def path_in_package(file: str) -> list[str]:
    """Return the parts of a file's path from its outermost package on, e.g. ``["json", "__init__.py"]``."""
    folder, name = os.path.split(os.path.abspath(file))
    parts = [name]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    return parts
