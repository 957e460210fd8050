"""Read private parts of Fabric, and make the profiler of a loop without a Trainer."""

import importlib
from typing import Any

from .actions import namespace


def silent_profiler(callback: Any) -> Any:
    """Return a pass-through profiler of the namespace that a callback belongs to."""
    return importlib.import_module(f"{namespace(callback)}.profilers").PassThroughProfiler()


def fabric_strategy(module: Any) -> Any | None:
    """Return the strategy of a module that Fabric has set up; None for any other module."""
    return vars(module).get("_strategy") if type(module).__name__ == "_FabricModule" else None


def user_module(module: Any) -> Any:
    """Return the user's module inside the one that Fabric has set up."""
    return module.module if type(module).__name__ == "_FabricModule" else module


def user_optimizer(optimizer: Any) -> Any:
    """Return the user's optimizer inside the one that Fabric has set up."""
    is_fabric = any(base.__name__ == "_FabricOptimizer" for base in type(optimizer).__mro__)
    return optimizer.optimizer if is_fabric else optimizer


def user_loader(loader: Any) -> Any:
    """Return the user's loader inside the one that Fabric has set up."""
    return vars(loader)["_dataloader"] if type(loader).__name__ == "_FabricDataLoader" else loader


def replace_callback(fabric: Any, callback: Any, replacement: Any) -> None:
    """Replace a callback of Fabric in place."""
    callbacks = getattr(fabric, "_callbacks", None)
    if isinstance(callbacks, list):
        callbacks[:] = [replacement if each is callback else each for each in callbacks]
