"""Change a run during its setup or while it trains."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from .actions import namespace
from .settings import ddp_arguments, refreshes_by_step
from .undo import Undos, change_attribute


def change_refresh_rate(trainer: Any, n_steps: int, undos: Undos) -> bool:
    """Refresh the progress bar every ``n_steps``; return False without a bar, or if it refreshes by time."""
    bar = getattr(trainer, "progress_bar_callback", None)
    if bar is None or not refreshes_by_step(bar):
        return False
    name = "_refresh_rate" if "_refresh_rate" in vars(bar) else "refresh_rate"
    if name not in vars(bar):
        return False
    change_attribute(bar, name, n_steps, undos)
    return True


def is_in_loops(trainer: Any) -> bool:
    """Return whether this is called from within the Trainer's loops, not from its ``teardown`` or ``on_exception``."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_run_stage" and frame.f_locals.get("self") is trainer:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def logged_metadata(results: Any) -> Iterator[Any]:
    """Yield Lightning's metadata of each value in a loop's results: its ``name``, ``fx`` (the hook) and ``prog_bar``.

    A later ``self.log`` of the same name and hook must agree with it, in later epochs and fits too.
    """
    for result in list(results.values()) if isinstance(results, dict) else ():
        meta = getattr(result, "meta", None)
        if hasattr(meta, "prog_bar"):
            yield meta


def change_ddp_arguments(strategy: Any, arguments: dict[str, Any], undos: Undos) -> bool:
    """Change the arguments of torch's DistributedDataParallel; return False if the strategy is not DDP."""
    before = ddp_arguments(strategy)
    if before is None:
        return False
    change_attribute(strategy, "_ddp_kwargs", {**before, **arguments}, undos)
    return True


def checkpoint_in_fsdp(strategy: Any, kinds: set[type], undos: Undos) -> bool:
    """Have Lightning's FSDP keep no activations inside modules of these classes.

    Return False if the strategy is not FSDP, or has a policy of its own.
    """
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if getattr(strategy, "_activation_checkpointing_kwargs", None) != {}:
        return False
    change_attribute(strategy, "_activation_checkpointing_kwargs", {"auto_wrap_policy": ModuleWrapPolicy(kinds)}, undos)
    return True


def compile_module(trainer: Any, module: Any, options: dict[str, Any], undos: Undos) -> bool:
    """Compile a LightningModule in place, as ``trainer.fit(torch.compile(module))`` does.

    ``options`` are keyword arguments of ``torch.compile``. Return False if the module is already compiled.
    """
    import torch

    if getattr(module, "_compiler_ctx", None) is not None:
        return False
    lightning = importlib.import_module(f"{namespace(trainer)}.utilities.compile")
    methods = ("forward", "training_step", "validation_step", "test_step", "predict_step")
    names = set(vars(module))
    before = {name: vars(module)[name] for name in methods if name in names}
    added: set[str] = set()

    def undo() -> None:
        if module._compiler_ctx is not None:
            lightning.to_uncompiled(module)
        # Lightning leaves the plain methods as attributes of the instance. ``added`` is empty after an interrupt.
        for name in {*methods, *(added or set(vars(module)) - names)}:
            vars(module).pop(name, None)
        vars(module).update(before)

    undos.note(undo)
    lightning.from_compiled(torch.compile(module, **options))
    added |= set(vars(module)) - names  # besides the methods, what Lightning and torch store
    return True


def write_checkpoints_async(trainer: Any, undos: Undos) -> bool:
    """Write checkpoints in a thread; return False if anything but Lightning's ``TorchCheckpointIO`` writes them."""
    strategy = trainer.strategy
    before = getattr(strategy, "_checkpoint_io", None)
    if before is not None and type(before).__name__ != "TorchCheckpointIO":
        return False
    plugins = importlib.import_module(f"{namespace(trainer)}.plugins.io")
    async_io = plugins.AsyncCheckpointIO(before if before is not None else plugins.TorchCheckpointIO())

    def undo() -> None:
        async_io.teardown()  # waits for what is being written
        if getattr(strategy, "_checkpoint_io", None) is async_io:
            strategy._checkpoint_io = before

    undos.note(undo)
    strategy.checkpoint_io = async_io
    return True
