"""Which modules of a model are told apart, and what is known of the whole before any is measured."""

from __future__ import annotations

from torch import nn

from lightning_perf.records import ModelProfile

from .module_walk import named_children, parameters
from .plain import is_lazy, is_readable_tensor, without_overrides
from .saved_tensors import top_level_modules

MAX_MODULES = 256
"""A model with more than so many modules at the depth asked for is listed less deep."""


def listed_modules(root: nn.Module, depth: int = 1) -> dict[str, nn.Module]:
    """The modules of a model down to a depth, by path, outer ones before those inside them.

    Args:
        root: The model; itself not listed, its path being ``""``.
        depth: 1 for the top-level modules (of the only child, where all hangs below a single one), 2 for their
            children too, and so on. What makes the list longer than ``MAX_MODULES`` is left out, level by level.
            A module that occurs twice is listed under its first path.
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


def bare_profile(root: nn.Module, device: str) -> ModelProfile:
    """A model's profile with its parameters alone; those without a shape yet are left out.

    Args:
        root: The model.
        device: That it runs on, as in ``ModelProfile``.
    """
    own = [parameter for parameter in parameters(root) if is_readable_tensor(parameter) and not is_lazy(parameter)]
    with without_overrides():
        return _profile(root, device, own)


def _profile(root: nn.Module, device: str, parameters: list[nn.Parameter]) -> ModelProfile:
    return ModelProfile(
        class_name=type(root).__name__,
        device=device,
        n_parameters=sum(p.numel() for p in parameters),
        n_trainable=sum(p.numel() for p in parameters if p.requires_grad),
        parameters_bytes=sum(p.numel() * p.element_size() for p in parameters),
    )
