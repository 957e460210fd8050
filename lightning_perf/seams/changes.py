"""Changes of a run that is being set up or is running."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from .actions import namespace
from .settings import ddp_arguments, refreshes_by_step
from .timed import result_collections
from .undo import Undo, change_attribute


def change_refresh_rate(trainer: Any, n_steps: int) -> Undo | None:
    """Refresh the progress bar every ``n_steps``; None without a bar, or if it refreshes by time."""
    bar = getattr(trainer, "progress_bar_callback", None)
    if bar is None or not refreshes_by_step(bar):
        return None
    name = "_refresh_rate" if "_refresh_rate" in vars(bar) else "refresh_rate"
    return change_attribute(bar, name, n_steps) if name in vars(bar) else None


def logged_metadata(trainer: Any) -> Iterator[Any]:
    """Yield Lightning's metadata of each logged value: its ``name``, ``fx`` (the hook) and ``prog_bar``.

    A later ``self.log`` of the same name and hook must agree with it, in later epochs and fits too.
    """
    for results in result_collections(trainer):
        for result in list(results.values()) if isinstance(results, dict) else ():
            meta = getattr(result, "meta", None)
            if hasattr(meta, "prog_bar"):
                yield meta


def change_ddp_arguments(strategy: Any, arguments: dict[str, Any]) -> Undo | None:
    """Change the arguments of torch's DistributedDataParallel; None if the strategy is not DDP."""
    before = ddp_arguments(strategy)
    if before is None:
        return None
    return change_attribute(strategy, "_ddp_kwargs", {**before, **arguments})


def compile_module(trainer: Any, module: Any, options: dict[str, Any]) -> Undo | None:
    """Compile a LightningModule in place, as ``trainer.fit(torch.compile(module))`` does; None if it is compiled.

    ``options`` are keyword arguments of ``torch.compile``.
    """
    import torch

    if getattr(module, "_compiler_ctx", None) is not None:
        return None
    lightning = importlib.import_module(f"{namespace(trainer)}.utilities.compile")
    methods = ("forward", "training_step", "validation_step", "test_step", "predict_step")
    names = set(vars(module))
    before = {name: vars(module)[name] for name in methods if name in names}
    lightning.from_compiled(torch.compile(module, **options))
    added = set(vars(module)) - names  # besides the methods, what Lightning and torch store

    def undo() -> None:
        if module._compiler_ctx is None:
            return
        lightning.to_uncompiled(module)
        for name in {*methods, *added}:  # Lightning leaves the plain methods as attributes of the instance
            vars(module).pop(name, None)
        vars(module).update(before)

    return undo


def write_checkpoints_async(trainer: Any) -> Undo | None:
    """Write checkpoints in a thread; None if anything but Lightning's ``TorchCheckpointIO`` writes them."""
    strategy = trainer.strategy
    before = getattr(strategy, "_checkpoint_io", None)
    if before is not None and type(before).__name__ != "TorchCheckpointIO":
        return None
    plugins = importlib.import_module(f"{namespace(trainer)}.plugins.io")
    async_io = plugins.AsyncCheckpointIO(before if before is not None else plugins.TorchCheckpointIO())
    strategy.checkpoint_io = async_io

    def undo() -> None:
        async_io.teardown()  # waits for what is being written
        if getattr(strategy, "_checkpoint_io", None) is async_io:
            strategy._checkpoint_io = before

    return undo
