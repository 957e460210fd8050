"""Find the native code that a loader's parts call by name; unknown native code may share state across processes."""

import copyreg
import dis
import functools
import sys
import types
from collections.abc import ItemsView, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

from lightning_perf.probes import plain
from lightning_perf.probes.sampled_steps.code_lines import USER, owner_of

_KNOWN_PACKAGES = frozenset(
    (
        "PIL", "albumentations", "cv2", "datasets", "h5py", "lightning", "lightning_fabric", "lightning_perf", "numpy",
        "kornia", "monai", "orjson", "pandas", "pyarrow", "pyinstrument", "pytorch_lightning", "regex", "safetensors",
        "scipy", "sentencepiece", "skimage", "sklearn", "timm", "tokenizers", "torch", "torchaudio", "torchvision",
        "transformers", "xxhash", "yaml",
    )
)  # fmt: skip
"""Packages whose native code only computes, or reads files into its own memory, except those in ``_SHARING``."""
_KNOWN_STANDARD_MODULES = frozenset(
    (
        "_abc", "_collections", "_functools", "_hashlib", "_json", "_operator", "_random", "_struct", "abc", "array",
        "collections", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "itertools", "operator",
        "pathlib", "random", "re", "types", "typing", "uuid", "zlib", "zoneinfo",
    )
)  # fmt: skip
"""Modules of the standard library whose types in C hold nothing that is shared."""
_EXTENSIONS = tuple(EXTENSION_SUFFIXES)
_CONSTRUCTING = frozenset(("__class__", "__init__", "__new__", "type"))
"""Names with which code can make an instance of a class that it does not name."""
_NO_CONSTRUCTORS = ("abc", "builtins", "torch", "torchaudio", "torchvision", "typing")
"""Packages whose base classes make no further instances of the classes that derive from them."""
_SHARING = ("torch._C._distributed", "torch.distributed", "torch.multiprocessing", "pyarrow._", "pyarrow.plasma")
_SHARING_STANDARD = frozenset(("_ctypes", "_multiprocessing", "_posixshmem", "ctypes", "mmap", "multiprocessing"))
"""Modules of the standard library that open memory, semaphores or C functions by name without an audit event."""


def _interpreter_types() -> frozenset[type]:
    """Return the interpreter's own types. Their ``__module__`` does not identify them: C extensions may set it too."""
    empty: list[Any] = [[], (), {}, {}.values(), {}.items(), set(), "", b"", bytearray(), range(0)]
    iterators = [iter(each) for each in empty]
    values = [*vars(sys.modules["builtins"]).values(), *vars(types).values()]
    own = {each for each in values if type.__instancecheck__(type, each)}
    own |= {type(each) for each in (*iterators, {}.keys(), {}.values(), {}.items(), reversed([]), iter(int, 0))}
    return frozenset(own - {memoryview, getattr(types, "CapsuleType", memoryview)})


_INTERPRETER_TYPES = _interpreter_types()
_SLOTS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
          types.GetSetDescriptorType)  # fmt: skip


def bases_of(kind: type) -> tuple[type, ...]:
    """Return a class and its bases, in the order in which attributes are looked up."""
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return mro


def defined_in(kind: type) -> ItemsView[str, Any]:
    """Return the names and values that a class itself defines."""
    namespace: types.MappingProxyType[str, Any] = type.__dict__["__dict__"].__get__(kind)
    return namespace.items()


@functools.cache
def is_copied_without_init(kind: type) -> bool:
    """Return whether copying an instance, by forking or pickling, never runs its ``__init__`` again.

    It may run with custom pickling, class methods, dataclasses, or base classes of other packages.
    """
    if kind in copyreg.dispatch_table or any(
        plain.class_attribute(kind, name) is not vars(object)[name] for name in ("__reduce__", "__reduce_ex__")
    ):
        return False
    for base in bases_of(kind):
        if not is_user_class(base) and module_of(base).partition(".")[0] not in _NO_CONSTRUCTORS:
            return False
        for name, value in defined_in(base):
            if name in ("__dataclass_fields__", "__attrs_attrs__") or (type(value) is classmethod and name[:2] != "__"):
                return False
    return True


def constructs_unnamed(value: Any) -> bool:
    """Return whether a value is a function of the user's that may make instances of a class that it does not name."""
    if type(value) is not types.FunctionType or owner_of(value.__code__.co_filename) != USER:
        return False
    calls = _CONSTRUCTING - ({"__init__"} if value.__code__.co_name == "__init__" else set())  # that of a base
    return any(not calls.isdisjoint((*code.co_names, *code.co_consts)) for code in _code_objects(value.__code__))


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a function's code and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if type(inner) is types.CodeType:
            yield from _code_objects(inner)


@functools.cache
def is_native(kind: type) -> bool:
    """Return whether a class is written in C: only then does it have slot wrappers or getters of its own."""
    return any(
        value.__objclass__ is kind
        for name, value in defined_in(kind)
        if type(value) in _SLOTS and name not in ("__dict__", "__weakref__")
    )


@functools.cache
def is_user_class(kind: type) -> bool:
    """Return whether a class is defined in a file of the user's."""
    return _is_user_module(module_of(kind))


def module_of(kind: type) -> str:
    """Return the name of a class's module, without running code of its metaclass."""
    return str(type.__dict__["__module__"].__get__(kind))


def is_known_module(name: str) -> bool:
    """Return whether a module's C code is known to share nothing with other processes."""
    top = name.partition(".")[0]
    return (top in _KNOWN_PACKAGES or top in _KNOWN_STANDARD_MODULES) and not name.startswith(_SHARING)


def is_extension_allowed(name: str) -> bool:
    """Return whether the child of a probe may load an extension module."""
    top = name.partition(".")[0]
    return is_known_module(name) or (top in sys.stdlib_module_names and name not in ("_posixshmem", "_ctypes"))


def function_references(function: types.FunctionType) -> Iterator[Any]:
    """Yield the defaults and closure of a function and, if it is the user's, the globals and modules that it names."""
    yield function.__defaults__
    yield function.__kwdefaults__
    yield from function.__closure__ or ()
    if owner_of(function.__code__.co_filename) != USER:
        return
    for code in _code_objects(function.__code__):
        named = [dict.get(function.__globals__, name) for name in code.co_names]
        imported = [step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"]
        named += [sys.modules.get(name) for name in imported]
        for value in named:
            yield value
            if value is not None and plain.is_a(value, types.ModuleType):
                yield from _named_of_module(value, code.co_names)


def _named_of_module(module: types.ModuleType, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield attributes of a module with one of these names: submodules, and all values of the user's own modules."""
    own = plain.attributes(module)
    for name in names:
        value = own.get(name)
        if plain.is_a(value, types.ModuleType) or _is_user_module(_name_of(module)):
            yield value


class NativeCodeSearch:
    """Search for native code that is not known to be free of shared state; caches packages for one search."""

    def __init__(self) -> None:
        self._packages: dict[str, str | None] = {}

    def refuses(self, value: Any) -> str | None:
        """Return the unknown code that a value is or calls; None if all of it is known, or checked elsewhere."""
        kind = type(value)
        if plain.is_a(value, types.ModuleType):
            return self._why_module_is_unsafe(_name_of(value))
        if kind in (types.BuiltinFunctionType, types.FunctionType):
            return self._why_module_is_unsafe(str(value.__module__)) if value.__module__ is not None else None
        if plain.is_a(value, type):
            return next(filter(None, map(self._refuses_class, bases_of(value))), None)
        return None

    def _refuses_class(self, kind: type) -> str | None:
        """Return the unknown code of a class; its instances are checked by ``held``."""
        module = module_of(kind)
        if module.partition(".")[0] in sys.stdlib_module_names and module not in _SHARING_STANDARD:
            return None  # the audit hook sees what makes an instance, or the instance shares nothing
        return self._why_module_is_unsafe(module)

    def _why_module_is_unsafe(self, name: str) -> str | None:
        top = name.partition(".")[0]
        if is_known_module(name) or _is_user_module(name):
            return None
        if top in sys.stdlib_module_names:
            return f"the module {name}" if top in _SHARING_STANDARD else None
        if name.startswith(_SHARING):
            return f"the module {name}"
        return self._refuses_package(top)

    def _refuses_package(self, top: str) -> str | None:
        """Return the unknown C code of a package and its imports; None if there is none."""
        if top in self._packages:
            return self._packages[top]
        self._packages[top] = None  # packages import each other
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] != top or not plain.is_a(module, types.ModuleType):
                continue
            own = plain.attributes(module)
            if str(own.get("__file__")).endswith(_EXTENSIONS):
                self._packages[top] = f"code in C of {name}"
                break
            reason = next(filter(None, map(self._why_module_is_unsafe, _modules_named(own))), None)
            if reason is not None:
                self._packages[top] = f"{reason} through {top}" if " through " not in reason else reason
                break
        return self._packages[top]


def _modules_named(own: dict[str, Any]) -> set[str]:
    """Return the modules among a module's globals, and those that its globals or their classes come from."""
    names = set()
    for value in list(own.values()):
        names.add(module_of(type(value)))
        if plain.is_a(value, types.ModuleType):
            names.add(_name_of(value))
        elif plain.is_a(value, type):
            names.add(module_of(value))
        elif type(value) in (types.FunctionType, types.BuiltinFunctionType) and type(value.__module__) is str:
            names.add(value.__module__)
    return names


def _name_of(module: types.ModuleType) -> str:
    return str(plain.attributes(module).get("__name__"))


def _is_user_module(name: str) -> bool:
    module = sys.modules.get(name)
    file = plain.attributes(module).get("__file__") if module is not None else None
    return name == "__main__" or (type(file) is str and not file.endswith(_EXTENSIONS) and owner_of(file) == USER)


def is_interpreter_type(kind: type) -> bool:
    """Return whether a class is the interpreter's own, whose values hold only values that are inspected too."""
    return kind in _INTERPRETER_TYPES
