"""End a training that is only measured early, and keep it from writing to the user's files."""

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .actions import base_class, namespace


def stop_fit(trainer: Any) -> None:
    """End ``fit`` from within a hook by the exception of Lightning's tuner, after which only teardown hooks run.

    ``should_stop`` alone would validate once more, save checkpoints and query callbacks for metrics that do not exist
    yet. It is only used for spawned training processes, where the tuner's exception would count as a crash.
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
    """Return a logger that leaves the user's files and services alone.

    Loggers of TensorBoard and CSV files write below ``folder``, so that they cost the same. Others may send or store
    data anywhere, so a logger that ignores everything replaces them. ``package`` is the Trainer's namespace.
    """
    if base_class(type(logger), ("TensorBoardLogger", "CSVLogger")) is not None:
        own = vars(logger)
        places = [name for name in ("_root_dir", "_save_dir") if name in own]
        if places and all(str(own[name]) != folder for name in places):
            for name in places:
                setattr(logger, name, folder)
            if "_experiment" in own:  # may exist for the user's folder
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
    """Replacement of a service's run: every attribute and method exists and does nothing."""

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

    def __fspath__(self) -> str:
        return ""  # os.path.join("checkpoints", run.id)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass


def redirect_loggers(folder: str, package: str) -> None:
    """Redirect Lightning's loggers from their creation on: a script may use one before it has a Trainer.

    Loggers of files write below the folder; the run of a service is never started. There is no undo: this is for
    processes that are only measured. ``package`` is ``lightning.pytorch`` or ``pytorch_lightning``.
    """
    loggers = importlib.import_module(f"{package}.loggers")
    base = importlib.import_module(f"{package}.loggers.logger").Logger
    classes: set[Any] = {one for one in vars(loggers).values() if isinstance(one, type) and issubclass(one, base)}
    for cls in classes - {base}:
        if cls.__name__ in ("TensorBoardLogger", "CSVLogger"):
            cls.__init__ = _redirected(cls.__init__, folder, package)
        elif "experiment" in vars(cls):
            cls.experiment = property(lambda _: Silent())


def _redirected(original: Callable[..., None], folder: str, package: str) -> Callable[..., None]:
    @functools.wraps(original)
    def init(logger: Any, *args: Any, **kwargs: Any) -> None:
        original(logger, *args, **kwargs)
        redirected_logger(logger, folder, package)

    return init


def wrap_checkpoint_io(trainer: Any, save: Callable[..., Any], remove: Callable[..., Any]) -> None:
    """Replace ``strategy.save_checkpoint`` and ``strategy.remove_checkpoint``; there is no undo.

    Both functions are called with Lightning's own method and its arguments.
    """
    strategy = trainer.strategy
    if "save_checkpoint" not in vars(strategy):
        strategy.save_checkpoint = functools.partial(save, strategy.save_checkpoint)
        strategy.remove_checkpoint = functools.partial(remove, strategy.remove_checkpoint)
