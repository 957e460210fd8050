"""Walk a model's modules, parameters and buffers without calling methods that the user may have overridden."""

from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import nn

from lightning_perf.probes import plain
from lightning_perf.records import ModelProfile


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


def saved_buffers(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers that a module's state holds, by path."""
    for path, module in named_modules(root):
        left_out = plain.attributes(module).get("_non_persistent_buffers_set") or ()
        for name, buffer in _items(module, "_buffers"):
            if buffer is not None and name not in left_out:
                yield (f"{path}.{name}" if path else name), buffer


def buffers(root: nn.Module) -> Iterator[torch.Tensor]:
    """Yield all buffers, each once."""
    return (buffer for _, buffer in named_buffers(root))


def states_of(optimizer: Any) -> list[tuple[Any, Any]]:
    """Return the parameters and states of an optimizer, or of one in DeepSpeed's wrapper; empty if it computes them."""
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
    return _called({f"{prefix}{name}": child for name, child in children.items()})


def _called(level: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the modules of a level, and in place of lists and dicts of modules, which are never called, their members.

    The level itself is returned if there are more than ``MAX_MODULES`` members.
    """
    called: dict[str, nn.Module] = {}
    seen: set[int] = set()
    todo = list(reversed(level.items()))
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
            todo += reversed([(f"{path}.{name}", child) for name, child in named_children(module)])
        else:
            called[path] = module
    return called if len(called) <= MAX_MODULES else level


def listed_modules(root: nn.Module, depth: int) -> dict[str, nn.Module]:
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
        below = {f"{path}.{name}": child for path, module in fresh.items() for name, child in named_children(module)}
        level = _called(below)
    return listed


def containing_module(name: str, modules: Container[str]) -> str:
    """Return the innermost path in ``modules`` that a parameter of this name is in; ``""`` if none is."""
    path = name.rpartition(".")[0]
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def parameters_by_module(root: nn.Module, modules: Container[str]) -> dict[str, int]:
    """Return the number of elements of all parameters, by the innermost of ``modules`` that holds them.

    Parameters without a shape yet are omitted.
    """
    counts: dict[str, int] = {}
    for name, parameter in named_parameters(root):
        if plain.has_shape(parameter):
            path = containing_module(name, modules)
            counts[path] = counts.get(path, 0) + plain.n_elements(parameter)
    return counts


def bare_profile(root: nn.Module, device: str) -> ModelProfile:
    """Return a model's profile with only its parameters; those without a shape yet are omitted."""
    own = [parameter for parameter in parameters(root) if plain.has_shape(parameter)]
    with plain.without_overrides():
        return ModelProfile(
            class_name=type(root).__name__,
            device=device,
            n_parameters=sum(p.numel() for p in own),
            n_trainable=sum(p.numel() for p in own if p.requires_grad),
            parameters_bytes=sum(p.numel() * p.element_size() for p in own),
        )
