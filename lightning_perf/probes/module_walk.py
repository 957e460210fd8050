"""Walk a model's modules, parameters and buffers without calling methods that the user may have overridden."""

from __future__ import annotations

from collections.abc import Container, Iterator
from math import prod
from typing import Any

import torch
from torch import nn

from lightning_perf.records import ModelProfile

from . import plain


def named_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module's children by name, each once, as ``nn.Module.named_children`` does."""
    seen: set[int] = set()
    for name, child in _items(module, "_modules"):
        if child is not None and id(child) not in seen:
            seen.add(id(child))
            yield name, child


def named_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and all modules below it by path, each once, as ``nn.Module.named_modules`` does."""
    seen: set[int] = set()
    todo = [("", root)]
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        below = [(f"{path}.{name}" if path else name, child) for name, child in _items(module, "_modules")]
        todo += [(name, child) for name, child in reversed(below) if child is not None]


def modules(root: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all modules below it, each once."""
    return (module for _, module in named_modules(root))


def own_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module itself."""
    return (parameter for _, parameter in _items(module, "_parameters") if parameter is not None)


def named_parameters(root: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield all parameters by path, each once."""
    return _named_members(root, "_parameters")


def parameters(root: nn.Module) -> Iterator[nn.Parameter]:
    """Yield all parameters, each once."""
    return (parameter for _, parameter in named_parameters(root))


def named_buffers(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all buffers by path, each once."""
    return _named_members(root, "_buffers")


def buffers(root: nn.Module) -> Iterator[torch.Tensor]:
    """Yield all buffers, each once."""
    return (buffer for _, buffer in named_buffers(root))


def flat_parameters(root: nn.Module) -> dict[int, dict[str, nn.Parameter]]:
    """Return stand-ins for the parameters that FSDP keeps in flat ones, by their module's id and name.

    Each has the parameter's ``full_shape``, and no elements.
    """
    found: dict[int, dict[str, nn.Parameter]] = {}
    for module in modules(root):
        flat: Any = plain.stored(plain.stored(module, "_handle"), "flat_param")
        if flat is None or "FullyShardedDataParallel" not in library_names(type(module)):
            continue
        for info, shape in zip(flat._param_infos, flat._shapes, strict=True):
            whole = nn.Parameter(torch.empty(0, dtype=flat.dtype), flat.requires_grad)
            whole.ds_shape = shape  # type: ignore[attr-defined]
            found.setdefault(id(info.module), {})[info.param_name] = whole
        for info in flat._shared_param_infos:
            whole = found[id(info.prim_module)][info.prim_param_name]
            found.setdefault(id(info.module), {})[info.param_name] = whole
    return found


def full_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a readable tensor; of one that DeepSpeed (stage 3) or FSDP hold sharded, when gathered."""
    return tuple(plain.attributes(tensor).get("ds_shape") or plain.field(tensor, "shape"))


def library_names(kind: type) -> list[str]:
    """Return the names of a class and its bases, without those of other packages than torch and Lightning."""
    return [base.__name__ for base in kind.__mro__ if plain.is_library(base)]


def states_of(optimizer: Any) -> list[tuple[Any, Any]]:
    """Return the parameters and states of an optimizer, of Lightning's wrapper too; empty where they are computed."""
    inner = plain.attributes(optimizer).get("optimizer", optimizer)
    return plain.items_of(plain.stored(inner, "state")) or []


def _items(module: nn.Module, name: str) -> list[tuple[str, Any]]:
    found = plain.attributes(module).get(name)
    items = plain.items_of(found)
    if items is None and found is not None and plain.is_library(type(found)):  # of a ScriptModule
        items = list(found.items())
    return items or []


def _named_members(root: nn.Module, kind: str) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for path, module in named_modules(root):
        for name, member in _items(module, kind):
            if member is not None and id(member) not in seen:
                seen.add(id(member))
                yield (f"{path}.{name}" if path else name), member


MAX_MODULES = 256
"""Maximum number of listed modules; a model with more is listed to a smaller depth."""


def top_level_modules(root: nn.Module) -> dict[str, nn.Module]:
    """Return the children of a module by name; if there is only a single one without parameters, its children."""
    prefix, children = "", dict(named_children(root))
    while len(children) == 1:
        [(name, only)] = children.items()
        below = dict(named_children(only))
        if not below or next(own_parameters(only), None) is not None:
            break
        prefix, children = f"{prefix}{name}.", below
    return {f"{prefix}{name}": child for name, child in children.items()}


def listed_modules(root: nn.Module, depth: int = 1) -> dict[str, nn.Module]:
    """Return the modules of a model down to a depth, by path, outer ones first.

    Depth 1 lists the top-level modules. Levels that would list more than ``MAX_MODULES`` modules are omitted. A module
    that occurs twice has its first path.
    """
    level = top_level_modules(root)
    listed: dict[str, nn.Module] = {}
    seen: set[int] = set()
    for _ in range(max(1, depth)):
        fresh = {}
        for path, module in level.items():
            if id(module) not in seen:
                seen.add(id(module))
                fresh[path] = module
        if listed and len(listed) + len(fresh) > MAX_MODULES:
            break
        listed |= fresh
        level = {f"{path}.{name}": child for path, module in fresh.items() for name, child in named_children(module)}
    return listed


def owner_of(name: str, modules: Container[str]) -> str:
    """Return the path of the innermost of ``modules`` that holds a parameter of this name; ``""`` if none does."""
    path = name.rpartition(".")[0]
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def bare_profile(root: nn.Module, device: str) -> ModelProfile:
    """Return a model's profile with only its parameters, in full; those without a shape yet are omitted."""
    flat = flat_parameters(root)
    held = (p for module in modules(root)
            for p in (dict(_items(module, "_parameters")) | flat.get(id(module), {})).values())  # fmt: skip
    own = {id(p): p for p in held if plain.has_shape(p) and "_shapes" not in plain.attributes(p)}.values()
    sizes = [(prod(full_shape(p)), plain.field(p, "requires_grad"), plain.field(p, "dtype").itemsize) for p in own]
    return ModelProfile(
        class_name=type(root).__name__,
        device=device,
        n_parameters=sum(n for n, _, _ in sizes),
        n_trainable=sum(n for n, is_trained, _ in sizes if is_trained),
        parameters_bytes=sum(n * n_bytes for n, _, n_bytes in sizes),
    )
