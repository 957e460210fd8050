"""A training that is there to be measured only: it ends early, and writes nothing of the user's."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from .actions import base_class, namespace
from .undo import Undo, change_attribute


def stop_fit(trainer: Any) -> None:
    """Ends ``fit`` now, from within a hook, as Lightning's own tuner does: teardown hooks run, nothing else does.

    ``should_stop`` alone would validate once more, save checkpoints and ask callbacks for metrics that do not exist
    yet. It is what is left where the processes that train were spawned by this one, which would take the tuner's way
    out for a crash.

    Raises:
        Exception: Lightning's own, which ``fit`` catches.
    """
    trainer.should_stop = True
    launcher = getattr(getattr(trainer, "strategy", None), "launcher", None)
    if type(launcher).__name__ in ("_MultiProcessingLauncher", "_XLALauncher"):
        return
    module = sys.modules.get(f"{namespace(trainer)}.utilities.exceptions")
    leave = getattr(module, "_TunerExitException", None)
    if leave is not None:
        raise leave


def redirected_logger(logger: Any, folder: str, package: str) -> Any:
    """A logger that leaves the user's files and services alone.

    Those that write TensorBoard or CSV files go on writing them, below ``folder``: they cost what they cost. Others may
    send or store what they get anywhere, so a logger that swallows all of it takes their place.

    Args:
        logger: The user's.
        folder: Where files may go.
        package: ``lightning.pytorch`` or ``pytorch_lightning``.
    """
    if base_class(type(logger), ("TensorBoardLogger", "CSVLogger")) is not None:
        own = vars(logger)
        places = [name for name in ("_root_dir", "_save_dir") if name in own]
        if places and all(str(own[name]) != folder for name in places):
            for name in places:
                setattr(logger, name, folder)
            if "_experiment" in own:  # made for the user's folder, if at all
                logger._experiment = None
        if places:
            return logger
    dummy: Any = importlib.import_module(f"{package}.loggers.logger").DummyLogger
    if isinstance(logger, dummy):
        return logger
    silent = dummy()
    silent._experiment = Silent()
    return silent


class Silent:
    """Stands in for a service's run: whatever is asked of it, it is there and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __str__(self) -> str:
        return ""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass


def lead_loggers_away(folder: str, package: str) -> None:
    """Lets Lightning's loggers keep to a folder from their making on: a script may use one before it has a Trainer.

    Those that write files write them below the folder; the run of a service is never begun. It is not undone: for
    processes that only measure.

    Args:
        folder: Where files may go.
        package: ``lightning.pytorch`` or ``pytorch_lightning``.
    """
    loggers = importlib.import_module(f"{package}.loggers")
    base = importlib.import_module(f"{package}.loggers.logger").Logger
    classes: set[Any] = {one for one in vars(loggers).values() if isinstance(one, type) and issubclass(one, base)}
    for cls in classes - {base}:
        if cls.__name__ in ("TensorBoardLogger", "CSVLogger"):
            cls.__init__ = _led_away(cls.__init__, folder, package)
        elif "experiment" in vars(cls):
            cls.experiment = property(lambda _: Silent())


def _led_away(original: Callable[..., None], folder: str, package: str) -> Callable[..., None]:
    @functools.wraps(original)
    def init(logger: Any, *args: Any, **kwargs: Any) -> None:
        original(logger, *args, **kwargs)
        redirected_logger(logger, folder, package)

    return init


def wrap_checkpoint_io(trainer: Any, save: Callable[..., Any], remove: Callable[..., Any]) -> Undo | None:
    """Puts functions in the place of ``strategy.save_checkpoint`` and ``strategy.remove_checkpoint``.

    Args:
        trainer: The Trainer.
        save: Called with Lightning's own method and its arguments.
        remove: Likewise.
    """
    strategy = getattr(trainer, "strategy", None)
    if strategy is None or "save_checkpoint" in vars(strategy):
        return None
    with ExitStack() as put:
        for name, function in (("save_checkpoint", save), ("remove_checkpoint", remove)):
            own = functools.partial(function, getattr(strategy, name))
            put.callback(change_attribute(strategy, name, own))
        return put.pop_all().close
